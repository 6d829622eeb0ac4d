#include "thinreduce/methods/bf16.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/owner.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/bf16.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

using Word = std::uint16_t;

// One unit is one element. Parts and answers are bf16 words; the owner adds in float32, its own
// part unrounded. So a sum is rounded once, however many ranks there are.
class Bf16Owner final : public OwnerCodec {
 public:
  // `sum` is memory for the sum of a piece. `original` is where the gradient is kept, or null.
  Bf16Owner(std::span<float> values, int world, std::vector<float>& sum, Original* original)
      : values_(values), scale_(1.0f / static_cast<float>(world)), sum_(sum), original_(original) {}

  [[nodiscard]] std::size_t units() const override { return values_.size(); }
  [[nodiscard]] std::size_t unit_elements() const override { return 1; }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return range.size() * sizeof(Word);
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return range.size() * sizeof(Word);
  }
  [[nodiscard]] bool fixed_lengths() const override { return true; }
  [[nodiscard]] bool any_pieces() const override { return true; }

  void encode_part(Range range, std::vector<std::byte>& out) override {
    keep(range);
    append(part(values_, range), out);
  }
  void begin_sum(Range range) override {
    keep(range);
    const auto own = part(values_, range);
    sum_.assign(own.begin(), own.end());
  }
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override {
    kernels::add_bf16(words(range, rank, bytes), sum_);
  }
  void encode_answer(Range /*range*/, std::vector<std::byte>& out) override { append(sum_, out); }
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override {
    const auto sums = words(range, owner, bytes);
    kernels::from_bf16(sums, scale_, part(values_, range));
    finite_ = finite_ && all_finite(sums);
  }

  // Returns whether all means are finite.
  [[nodiscard]] bool finite() const { return finite_; }

 private:
  void keep(Range range) {
    if (original_ != nullptr) original_->keep(range);
  }
  // Rounds run by run in the nearest cache: to grow `out` first would fill it with zeros.
  static void append(std::span<const float> floats, std::vector<std::byte>& out) {
    std::array<Word, 4096> run;
    out.reserve(out.size() + floats.size() * sizeof(Word));
    for (std::size_t first = 0; first < floats.size(); first += run.size()) {
      const auto some = floats.subspan(first, std::min(run.size(), floats.size() - first));
      const auto rounded = std::span(run).first(some.size());
      kernels::to_bf16(some, rounded);
      const auto bytes = std::as_bytes(rounded);
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
  }
  // Returns whether no sum is Inf or NaN; the means are then finite too. Magnitudes of bf16 ascend
  // with their bits.
  static bool all_finite(std::span<const Word> sums) {
    constexpr std::int16_t kInfinity = 0x7f80;
    std::int16_t largest = 0;
    for (const Word sum : sums) {
      largest = std::max(largest, static_cast<std::int16_t>(sum & 0x7fffU));
    }
    return largest < kInfinity;
  }
  // Returns the words of a range that `rank` has sent.
  static std::span<const Word> words(Range range, int rank, std::span<const std::byte> bytes) {
    if (bytes.size() != range.size() * sizeof(Word)) {
      throw Error(ErrorCode::bad_frame, fmt::format("rank {} sent {} bytes of bf16 for {} elements",
                                                    rank, bytes.size(), range.size()));
    }
    return {reinterpret_cast<const Word*>(bytes.data()), range.size()};
  }

  std::span<float> values_;
  float scale_;
  std::vector<float>& sum_;
  Original* original_;
  bool finite_ = true;
};

class Bf16 final : public Method {
 public:
  void reduce(const Bucket& bucket, Exchange& exchange) override {
    Bf16Owner payload(bucket.values, exchange.size(), sum_, exchange.keep_in_parts());
    owner_reduce(exchange, payload);
    if (!payload.finite()) require_finite_sum(exchange, bucket.values, "element");
  }

 private:
  std::vector<float> sum_;  // kept from step to step
};

}  // namespace

MethodInfo bf16_info() {
  MethodInfo info;
  info.name = "bf16";
  info.wire_id = 2;
  info.algebra = Algebra::sum;
  info.summary =
      "Sends bfloat16, half the bytes of float32; the owner of each range adds in float32 and "
      "rounds the sum to nearest, once.";
  info.paper = "Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training";
  info.make = [](const Options&, const MethodSetup&) { return std::make_unique<Bf16>(); };
  return info;
}

}  // namespace thinreduce

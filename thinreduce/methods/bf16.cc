#include "thinreduce/methods/bf16.h"

#include "thinreduce/collective/ring.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/bf16.h"

namespace thinreduce {
namespace {

std::span<const std::uint16_t> as_words(std::span<const std::byte> bytes) {
  ensure(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint16_t) == 0,
         "bf16 segments come in at even addresses");
  return {reinterpret_cast<const std::uint16_t*>(bytes.data()),
          bytes.size() / sizeof(std::uint16_t)};
}

// One unit is one element. A partial sum is rounded to bf16 for each hop; a rank adds its own part
// as the float32 it is.
class Bf16Ring final : public RingPayload {
 public:
  Bf16Ring(std::span<float> values, std::span<std::uint16_t> words, int world)
      : values_(values), words_(words), scale_(1.0f / static_cast<float>(world)) {}

  [[nodiscard]] std::size_t units() const override { return values_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return sizeof(std::uint16_t); }
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int /*summed*/) override {
    return std::as_writable_bytes(words(range));
  }
  void encode(UnitRange range) override { kernels::to_bf16(values(range), words(range)); }
  void add(UnitRange range, int /*summed*/, std::span<const std::byte> incoming) override {
    kernels::add_bf16(as_words(incoming), values(range), words(range));
  }
  void decode(UnitRange range) override { kernels::from_bf16(words(range), scale_, values(range)); }

 private:
  [[nodiscard]] std::span<float> values(UnitRange range) const {
    return values_.subspan(range.begin, range.size());
  }
  [[nodiscard]] std::span<std::uint16_t> words(UnitRange range) const {
    return words_.subspan(range.begin, range.size());
  }

  std::span<float> values_;
  std::span<std::uint16_t> words_;
  float scale_;
};

class Bf16 final : public Method {
 public:
  void reduce(const Bucket& bucket, Exchange& exchange) override {
    words_.resize(bucket.values.size());
    Bf16Ring payload(bucket.values, words_, exchange.size());
    ring_all_reduce(exchange, payload);
  }

 private:
  std::vector<std::uint16_t> words_;  // kept from step to step
};

}  // namespace

MethodInfo bf16_info() {
  MethodInfo info;
  info.name = "bf16";
  info.wire_id = 2;
  info.algebra = Algebra::sum;
  info.summary =
      "Sends bfloat16, half the bytes of float32; partial sums are rounded to nearest at every hop "
      "of "
      "the ring.";
  info.paper = "Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training";
  info.make = [](const Options&, const MethodSetup&) { return std::make_unique<Bf16>(); };
  return info;
}

}  // namespace thinreduce

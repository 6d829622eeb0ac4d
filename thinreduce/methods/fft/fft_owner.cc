#include "thinreduce/methods/fft/fft_owner.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "thinreduce/collective/owner.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/fft/fft_method.h"

namespace thinreduce {
namespace {

// The coefficients of an answer have this many bits less than those of a part, and as many
// mantissa bits as suit them: in a sum over the ranks, more pairs gain more than finer ones.
constexpr int kFewerBits = 3;
// The bytes of an answer, as a multiple of the bytes of a part with as many elements: parts and
// answers together are then below 2.2 payloads.
constexpr double kAnswerBytes = 1.28;
// The bits of a pair's position, roughly.
constexpr double kPositionBits = 4;

int answer_bits(int bits) {
  return std::max(bits - kFewerBits, kernels::kMinRangeBits);
}

// Returns how many pairs an owner keeps of a sum for each that a rank keeps of its own spectrum.
double answer_factor(int bits) {
  return kAnswerBytes * (2 * bits + kPositionBits) / (2 * answer_bits(bits) + kPositionBits);
}

// One unit is one group.
class FftOwner final : public FftMethod, private OwnerCodec {
 public:
  FftOwner(const MethodSetup& setup, const FftOptions& options)
      : FftMethod(setup, options),
        answer_(answer_bits(options.bits), {}, group_words()),
        kept_energy_(blocks().groups()),
        rank_(setup.rank),
        world_(setup.world),
        owned_(owned_range(blocks().groups(), setup.world, setup.rank)) {
    residual().replace(owned_);
  }

 private:
  double reduce_spectrum(const Bucket& bucket, Exchange& exchange, double theta) override {
    exchange.statistics["owner"] = 1;
    keep_ = 1 - theta;
    values_ = bucket.values;
    exchange.timed(Stage::encode, [&] { select(values_, keep_, owned_, exchange.workers); });
    owner_reduce(exchange, *this);
    double kept = 0;
    for (const float fraction : kept_energy_) kept += fraction;
    return kept_energy_.empty() ? 1 : kept / static_cast<double>(kept_energy_.size());
  }

  [[nodiscard]] PayloadShape answer_shape(Range range) const {
    return {range.size() * group_words(), answer_bits(options().bits)};
  }
  [[nodiscard]] std::size_t units() const override { return blocks().groups(); }
  [[nodiscard]] std::size_t unit_elements() const override { return group_floats(); }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return fft_payload_limit(shape_of(range));
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return fft_payload_limit(answer_shape(range));
  }

  void encode_part(Range range, std::vector<std::byte>& out) override {
    append(selected(), range, out);
  }
  void begin_sum(Range range) override {
    for (std::size_t group = range.begin; group < range.end; ++group) {
      std::ranges::copy(residual().take_in(group, values_, 0),
                        residual().replacement({group, group + 1}).begin());
    }
  }
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override {
    piece_.read(bytes, shape_of(range), rank);
    piece_.add_next(residual().replacement(range));
  }
  // The part of the sum that is not sent replaces the residual.
  void encode_answer(Range range, std::vector<std::byte>& out) override {
    const auto sum = residual().replacement(range);
    const double fraction = std::min(1.0, answer_factor(options().bits) * keep_);
    const double pairs = pairs_of(range);
    answer_.select(sum, static_cast<std::size_t>(std::ceil(fraction * pairs)));
    const Groups all{0, range.size()};
    append(answer_, all, out);
    if (!answer_.head().overflow) answer_.add_sent(all, -1, sum);
  }
  // At the owner, the answer is still in answer_: reading its own bytes would only cost time.
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override {
    const bool own = owner == rank_ && !answer_.head().overflow;
    if (!own) piece_.read(bytes, answer_shape(range), owner);
    std::fill_n(&kept_energy_[range.begin], range.size(),
                own ? answer_.head().kept_energy : piece_.kept_energy());
    for_runs(range, [&](Groups run) {
      sum_.assign(run.size() * group_floats(), 0.0f);
      if (own) {
        answer_.add_sent({run.begin - range.begin, run.end - range.begin}, 1, sum_);
      } else {
        piece_.add_next(sum_);
      }
      write_mean(run, sum_, world_, values_);
    });
  }

  void append(SelectedPairs& pairs, Groups groups, std::vector<std::byte>& out) {
    pairs.write(groups, payload_);
    out.insert(out.end(), payload_.begin(), payload_.end());
  }

  SelectedPairs answer_;
  std::vector<float> kept_energy_;  // of the answers, by group

  int rank_;
  int world_;
  Groups owned_;

  // State of the current reduction.
  double keep_ = 1;  // fraction of the pairs that a rank keeps
  std::span<float> values_;
  kernels::AlignedFloats sum_;      // spectrum of one run of an answer
  SpectrumPiece piece_;             // a part or an answer
  std::vector<std::byte> payload_;  // of one part or answer
};

}  // namespace

std::unique_ptr<Method> make_fft_owner(const MethodSetup& setup, const FftOptions& options) {
  return std::make_unique<FftOwner>(setup, options);
}

}  // namespace thinreduce

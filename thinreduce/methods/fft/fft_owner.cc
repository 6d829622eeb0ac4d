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
class FftOwner final : public FftMethod, private OwnerPayload {
 public:
  FftOwner(const MethodSetup& setup, const FftOptions& options)
      : FftMethod(setup, options),
        answer_(answer_bits(options.bits), {}, group_words()),
        kept_energy_(blocks().groups()) {}

 private:
  double reduce_spectrum(const Bucket& bucket, Exchange& exchange, double theta) override {
    exchange.statistics["owner"] = 1;
    exchange.timed(Stage::encode, [&] { begin(bucket, exchange, theta); });
    try {
      exchange.timed(Stage::encode, [&] { select(); });
      owner_reduce(exchange, *this, spare_);
    } catch (...) {
      if (feedback()) {
        for (std::size_t i = 0; i < settled_; ++i) add_sent(sent_[i], 1);
      }
      throw;
    }
    // The pairs are delivered; until here the residual, or settled_, still held them.
    if (feedback()) exchange.timed(Stage::encode, [&] { settle(); });
    double kept = 0;
    for (const float fraction : kept_energy_) kept += fraction;
    return kept_energy_.empty() ? 1 : kept / static_cast<double>(kept_energy_.size());
  }

  void begin(const Bucket& bucket, const Exchange& exchange, double theta) {
    keep_ = 1 - theta;
    world_ = exchange.size();
    mean_ = bucket.values;
    source_ = bucket.values;
    owned_ = cut({0, blocks().groups()}, static_cast<std::size_t>(world_),
                 static_cast<std::size_t>(exchange.rank()));
    sent_.clear();
    settled_ = 0;
    unanswered_.clear();
    if (!feedback()) return;
    add_gradient({0, blocks().groups()}, bucket.values);
    source_ = residual();
  }

  void select() {
    const double pairs = pairs_of({0, blocks().groups()}) - pairs_of(owned_);
    selected().select(blocks(), {.values = source_, .more = {}, .skip = owned_},
                      static_cast<std::size_t>(std::ceil(keep_ * pairs)));
  }

  [[nodiscard]] PayloadShape answer_shape(UnitRange range) const {
    return {range.size() * group_words(), answer_bits(options().bits)};
  }
  [[nodiscard]] std::span<float> spectrum_of(std::size_t group, UnitRange range) {
    return std::span<float>(sum_).subspan((group - range.begin) * group_floats(), group_floats());
  }

  [[nodiscard]] std::size_t units() const override { return blocks().groups(); }
  [[nodiscard]] std::size_t unit_elements() const override { return group_floats(); }
  [[nodiscard]] std::size_t max_part_bytes(UnitRange range) const override {
    return fft_payload_limit(shape_of(range));
  }
  [[nodiscard]] std::size_t max_answer_bytes(UnitRange range) const override {
    return fft_payload_limit(answer_shape(range));
  }

  void encode_part(UnitRange range, std::vector<std::byte>& out) override {
    append(selected(), range, out);
    sent_.push_back(range);
  }
  // The first parts of the other ranks are on their way: meanwhile those that this rank has sent
  // leave the residual.
  void begin_sum(UnitRange range) override {
    settle_sent();
    sum_.resize(range.size() * group_floats());
    for (std::size_t group = range.begin; group < range.end; ++group) {
      blocks().to_spectrum(group, source_, {}, spectrum_of(group, range));
    }
  }
  void add_part(UnitRange range, int rank, std::span<const std::byte> bytes) override {
    piece_.read(bytes, shape_of(range), rank);
    piece_.add_next(sum_);
  }
  void encode_answer(UnitRange range, std::vector<std::byte>& out) override {
    const double fraction = std::min(1.0, answer_factor(options().bits) * keep_);
    const double pairs = pairs_of(range);
    answer_.select(sum_, static_cast<std::size_t>(std::ceil(fraction * pairs)));
    const Groups all{0, range.size()};
    append(answer_, all, out);
    if (!feedback() || answer_.head().overflow) return;
    answer_.add_sent(all, -1, sum_);
    for (std::size_t group = range.begin; group < range.end; ++group) {
      blocks().from_spectrum(group, spectrum_of(group, range),
                             [&](std::size_t, std::span<const float> floats) {
                               unanswered_.insert(unanswered_.end(), floats.begin(), floats.end());
                             });
    }
  }
  void decode_answer(UnitRange range, int owner, std::span<const std::byte> bytes) override {
    piece_.read(bytes, answer_shape(range), owner);
    std::fill_n(&kept_energy_[range.begin], range.size(), piece_.kept_energy());
    for_runs(range, [&](Groups run) {
      sum_.assign(run.size() * group_floats(), 0.0f);
      piece_.add_next(sum_);
      write_mean(run, sum_, world_, mean_);
    });
  }

  void append(SelectedPairs& pairs, Groups groups, std::vector<std::byte>& out) {
    pairs.write(groups, payload_);
    out.insert(out.end(), payload_.begin(), payload_.end());
  }

  // Subtracts the parts that were sent from the residual.
  void settle_sent() {
    if (!feedback()) return;
    for (; settled_ < sent_.size(); ++settled_) add_sent(sent_[settled_], -1);
  }
  void settle() {
    settle_sent();
    auto unanswered = unanswered_.begin();
    for (std::size_t group = owned_.begin; group < owned_.end; ++group) {
      blocks().for_runs(group, [&](std::size_t offset, std::size_t, std::size_t length) {
        std::copy_n(unanswered, length, &residual()[offset]);
        unanswered += static_cast<std::ptrdiff_t>(length);
      });
    }
  }

  SelectedPairs answer_;
  std::vector<float> kept_energy_;  // of the answers, by group
  SpareBuffers spare_;

  // State of the current reduction.
  double keep_ = 1;  // fraction of the pairs that a rank keeps
  int world_ = 1;
  Groups owned_;
  std::span<const float> source_;
  std::span<float> mean_;
  kernels::AlignedFloats sum_;      // spectrum of one piece
  SpectrumPiece piece_;             // a part or an answer
  std::vector<Groups> sent_;        // pieces whose parts were sent
  std::size_t settled_ = 0;         // of these: the number that the residual no longer holds
  std::vector<float> unanswered_;   // of the own range: the sum without the answers
  std::vector<std::byte> payload_;  // of one part or answer
};

}  // namespace

std::unique_ptr<Method> make_fft_owner(const MethodSetup& setup, const FftOptions& options) {
  return std::make_unique<FftOwner>(setup, options);
}

}  // namespace thinreduce

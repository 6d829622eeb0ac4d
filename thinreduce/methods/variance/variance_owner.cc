#include "thinreduce/methods/variance/variance_owner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "thinreduce/collective/owner.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/top_selector.h"
#include "thinreduce/methods/variance/payload.h"
#include "thinreduce/methods/variance/waiting_sums.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;

// Totals are no multiples of tau: a sign can't stand for them.
VarianceFormat answer_format(VarianceFormat format) {
  if (format.values == Values::sign) format.values = Values::nibble;
  return format;
}

// One unit is one element.
class VarianceOwner final : public Method, private OwnerCodec {
 public:
  VarianceOwner(const BucketLayout& layout, const VarianceOptions& options)
      : keep_(options.keep),
        format_(options.format),
        answer_format_(answer_format(options.format)),
        sums_(layout, options) {}

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    exchange.statistics["owner"] = 1;
    exchange.timed(Stage::encode, [&] { sums_.collect(bucket); });
    try {
      exchange.timed(Stage::encode, [&] { begin(bucket, exchange); });
      owner_reduce(exchange, *this);
    } catch (...) {
      sums_.keep_waiting();
      throw;
    }
    // The parts are delivered; until here all sums were still waiting. Nothing can fail from here
    // on: `part_` has had room for each part before.
    exchange.timed(Stage::encode, [&] {
      for (const Sent& sent : sent_) {
        sums_.encode(sent.range, sent.tensors, part_);
        sums_.settle(sent.range, part_);
      }
      sums_.settle_owned(owned_, left_, answered_);
    });
    sums_.finish(bucket, exchange);
  }

  void add_residual(std::span<float> values) override { sums_.add_to(values); }
  void state(Archive& archive) override { sums_.state(archive); }

 private:
  void begin(const Bucket& bucket, const Exchange& exchange) {
    mean_ = bucket.values;
    rank_ = exchange.rank();
    world_ = exchange.size();
    owned_ = owned_range(sums_.all().size(), world_, rank_);
    sent_.clear();
    left_.assign(owned_.size(), 0.0F);
    answered_.assign(owned_.size(), 0);
  }
  [[nodiscard]] VariancePayload payload_of(const VarianceFormat& format, Range range) const {
    return {format, sums_.tensors_in(range)};
  }

  [[nodiscard]] std::size_t units() const override { return sums_.all().size(); }
  [[nodiscard]] std::size_t unit_elements() const override { return 1; }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return payload_of(format_, range).limit();
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return payload_of(answer_format_, range).limit();
  }

  void encode_part(Range range, std::vector<std::byte>& out) override {
    sent_.push_back({range, sums_.tensors_in(range)});
    const auto& tensors = sent_.back().tensors;
    sums_.encode(range, tensors, part_);
    append({format_, tensors}, part_, out);
  }
  void begin_sum(Range range) override {
    sum_.assign(range.size(), 0.0F);
    received_ = 0;
    const auto found = sums_.found(range);
    for (std::size_t i = 0; i < found.indices.size(); ++i) {
      sum_[found.indices[i] - range.begin] = found.values[i];
    }
    own_ = static_cast<double>(found.indices.size());
  }
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override {
    received_ += static_cast<double>(payload_of(format_, range).add(bytes, rank, sum_));
  }
  // Returns how many totals an answer has: as many as the other ranks have sent on average. Totals
  // that wait here are among the own sums: if there are very many, a few more are sent. If the
  // others have sent nothing, the own sums alone decide.
  [[nodiscard]] std::size_t totals_to_answer() const {
    constexpr double kMaxRatio = 1.1;
    const double others = received_ / std::max(1, world_ - 1);
    const double own = own_ / world_;
    const double wanted = others > 0 ? std::clamp(own, others, kMaxRatio * others) : own;
    return std::min(static_cast<std::size_t>(std::ceil(wanted)), sum_.size());
  }
  // Sends the largest totals; the rest stays in `left_`.
  void encode_answer(Range range, std::vector<std::byte>& out) override {
    const auto largest = selector_.select(sum_, totals_to_answer());
    clamp(largest.values);
    const auto tensors = sums_.tensors_in(range);
    answer_.fill(answer_format_, tensors, {largest.indices, clamped_});
    append({answer_format_, tensors}, answer_, out);
    settle_answer(range);
  }
  void settle_answer(Range range) {
    const std::size_t offset = range.begin - owned_.begin;
    std::size_t s = 0;
    std::size_t end = 0;
    for (const VarianceSent::Part& part : answer_.parts) {
      for (end += part.count; s < end; ++s) {
        const std::uint32_t index = answer_.indices[s];
        const float sent = answer_format_.values == Values::whole
                               ? answer_.values[s]
                               : nibble_value(answer_.codes[s], part.exponent);
        sum_[index] = keep_ ? sum_[index] - sent : 0.0F;
        answered_[offset + index] = 1;
      }
    }
    std::copy(sum_.begin(), sum_.end(), left_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override {
    const auto mean = part(mean_, range);
    for (const VarianceTensor& tensor : sums_.tensors_in(range)) {
      std::fill_n(&mean[tensor.offset], tensor.elements, 0.0F);
    }
    payload_of(answer_format_, range).add(bytes, owner, mean);
    for (const VarianceTensor& tensor : sums_.tensors_in(range)) {
      kernels::scale(mean.subspan(tensor.offset, tensor.elements),
                     1.0F / static_cast<float>(world_));
    }
  }

  void append(const VariancePayload& payload, const VarianceSent& sent,
              std::vector<std::byte>& out) {
    payload.write(sent, bytes_);
    out.insert(out.end(), bytes_.begin(), bytes_.end());
  }
  // A finite total beyond the largest that may be sent is cut; what remains is left.
  void clamp(std::span<const float> totals) {
    constexpr float kMax = 0x1p100F;
    clamped_.assign(totals.begin(), totals.end());
    for (float& total : clamped_) {
      if (std::isfinite(total)) total = std::clamp(total, -kMax, kMax);
    }
  }

  // A piece whose part was sent, and the tensors in it.
  struct Sent {
    Range range;
    std::vector<VarianceTensor> tensors;
  };

  bool keep_;
  VarianceFormat format_;
  VarianceFormat answer_format_;
  WaitingSums sums_;
  TopSelector selector_;

  // State of the current reduction.
  int rank_ = 0;
  int world_ = 1;
  Range owned_;
  std::span<float> mean_;
  std::vector<Sent> sent_;
  std::vector<float> sum_;              // totals of one piece
  double received_ = 0;                 // values in the parts of the other ranks for the piece
  double own_ = 0;                      // unambiguous sums of this rank in the piece
  std::vector<float> clamped_;          // the totals of one answer
  std::vector<float> left_;             // of the own range: the totals without the answers
  std::vector<std::uint8_t> answered_;  // of the own range: whether an answer has the element
  VarianceSent part_;
  VarianceSent answer_;
  std::vector<std::byte> bytes_;  // of one part or answer
};

}  // namespace

std::unique_ptr<Method> make_variance_owner(const BucketLayout& layout,
                                            const VarianceOptions& options) {
  return std::make_unique<VarianceOwner>(layout, options);
}

}  // namespace thinreduce

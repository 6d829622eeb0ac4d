#include "thinreduce/methods/topk/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "thinreduce/collective/owner.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/top_selector.h"
#include "thinreduce/methods/topk/payload.h"

namespace thinreduce {
namespace {

// An owner sends this many times as many values as a rank: with bfloat16 values, parts and answers
// together are then below 2.2 payloads of a gather.
constexpr double kAnswerFactor = 2.3;

// One unit is one element.
class TopKOwner final : public Method, private OwnerCodec {
 public:
  TopKOwner(std::size_t elements, double density, bool feedback)
      : elements_(elements), density_(density), feedback_(feedback) {
    if (feedback_) residual_.resize(elements_);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "top-k: the bucket must keep its size",
           bucket.values.size(), elements_);
    ensure(!feedback_ || residual_.size() == elements_, "top-k: each element must have a residual",
           residual_.size(), elements_);
    if (elements_ == 0) return;
    mean_ = bucket.values;
    source_ = bucket.values;
    rank_ = exchange.rank();
    share_ = 1.0f / static_cast<float>(exchange.size());
    owned_ = owned_range(elements_, exchange.size(), exchange.rank());
    unanswered_.clear();
    exchange.timed(Stage::encode, [&] {
      if (feedback_) {
        kernels::add(residual_, bucket.values);
        source_ = residual_;
      }
      select();
    });
    exchange.statistics["owner"] = 1;
    exchange.statistics["sent"] =
        static_cast<double>(sent_.indices.size()) / static_cast<double>(elements_);
    owner_reduce(exchange, *this);
    // The values are delivered; until here the residual still held them.
    if (feedback_) {
      for (std::size_t i = 0; i < rounded_.size(); ++i) {
        residual_[sent_.indices[i]] = sent_.values[i] - rounded_[i];
      }
      std::copy(unanswered_.begin(), unanswered_.end(), part(std::span(residual_), owned_).begin());
    }
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (feedback_) archive.summed("residual", residual_);
  }

 private:
  // Selects the elements to send. Those of the own range are not sent: they are set to zero
  // meanwhile, because zeros are never selected.
  void select() {
    const std::size_t others = elements_ - owned_.size();
    if (others == 0) {
      sent_ = {};
      rounded_.clear();
      return;
    }
    const auto own = part(source_, owned_);
    own_.assign(own.begin(), own.end());
    std::fill(own.begin(), own.end(), 0.0f);
    const auto put_back = [&] { std::copy(own_.begin(), own_.end(), own.begin()); };
    try {
      sent_ = selector_.select(source_, values_to_send(density_, others));
    } catch (...) {
      put_back();  // they must not be lost when memory runs out
      throw;
    }
    put_back();
    round_to_bf16(sent_.values, rounded_);
  }

  [[nodiscard]] std::size_t units() const override { return elements_; }
  [[nodiscard]] std::size_t unit_elements() const override { return 1; }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return topk_payload_limit(range.size(),
                              std::min(range.size(), values_to_send(density_, elements_)),
                              TopKValues::bf16);
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return topk_payload_limit(range.size(), values_to_answer(range), TopKValues::bf16);
  }
  [[nodiscard]] std::size_t values_to_answer(Range range) const {
    return values_to_send(std::min(1.0, kAnswerFactor * density_), range.size());
  }

  void encode_part(Range range, std::vector<std::byte>& out) override {
    const auto begin = std::lower_bound(sent_.indices.begin(), sent_.indices.end(), range.begin);
    const auto end = std::lower_bound(begin, sent_.indices.end(), range.end);
    offsets_.assign(begin, end);
    for (auto& offset : offsets_) offset -= static_cast<std::uint32_t>(range.begin);
    const auto first = static_cast<std::size_t>(begin - sent_.indices.begin());
    append({offsets_, std::span<const float>(rounded_).subspan(first, offsets_.size())}, range,
           out);
  }
  void begin_sum(Range range) override {
    const auto own = part(source_, range);
    sum_.assign(own.begin(), own.end());
  }
  void add_part(Range /*range*/, int rank, std::span<const std::byte> bytes) override {
    add_topk_payload(bytes, rank, sum_, TopKValues::bf16);
  }
  void require_finite(Range range) const {
    const std::size_t bad = kernels::first_nonfinite(sum_);
    if (bad < sum_.size()) {
      throw Error::overflow(fmt::format(
          "top-k: element {} of the sum over the ranks is {} at its owner, rank {}; a gradient "
          "overflowed",
          range.begin + bad, sum_[bad], rank_));
    }
  }
  void encode_answer(Range range, std::vector<std::byte>& out) override {
    require_finite(range);
    const auto answer = answer_selector_.select(sum_, values_to_answer(range));
    round_to_bf16(answer.values, answered_);
    append({answer.indices, answered_}, range, out);
    if (!feedback_) return;
    for (std::size_t i = 0; i < answered_.size(); ++i) {
      sum_[answer.indices[i]] = answer.values[i] - answered_[i];
    }
    unanswered_.insert(unanswered_.end(), sum_.begin(), sum_.end());
  }
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override {
    const auto mean = part(mean_, range);
    std::fill(mean.begin(), mean.end(), 0.0f);
    add_topk_payload(bytes, owner, mean, TopKValues::bf16);
    kernels::scale(mean, share_);
  }

  void append(const Selected& selected, Range range, std::vector<std::byte>& out) {
    write_topk_payload(selected, range.size(), payload_, TopKValues::bf16);
    out.insert(out.end(), payload_.begin(), payload_.end());
  }

  std::size_t elements_;
  double density_;
  bool feedback_;
  std::vector<float> residual_;
  TopSelector selector_;
  TopSelector answer_selector_;

  // State of the current reduction.
  int rank_ = 0;
  float share_ = 1;
  Range owned_;
  std::span<float> source_;
  std::span<float> mean_;
  Selected sent_;
  std::vector<float> rounded_;          // the values of `sent_` as they are sent
  std::vector<float> own_;              // of the own range, while the others are selected
  std::vector<float> sum_;              // of one piece
  std::vector<float> answered_;         // the values of one answer as they are sent
  std::vector<float> unanswered_;       // of the own range: the sum without the answer
  std::vector<std::uint32_t> offsets_;  // of one part
  std::vector<std::byte> payload_;      // of one part or answer
};

}  // namespace

std::unique_ptr<Method> make_topk_owner(std::size_t elements, double density, bool feedback) {
  return std::make_unique<TopKOwner>(elements, density, feedback);
}

}  // namespace thinreduce

// The sums that wait at a rank, and those of them that stand out in a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/exchange.h"
#include "thinreduce/kernels/select.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/methods/variance/options.h"
#include "thinreduce/methods/variance/payload.h"

namespace thinreduce {

// Histogram of the steps that sent elements have waited: less than 1, 2, 4, 8, ...
class Delays {
 public:
  void clear() { counts_.fill(0); }
  void add(float steps);
  // Reports fractions of `elements`, each named by the shortest delay of its class.
  void tell(double elements, Statistics& statistics) const;

 private:
  std::array<std::uint64_t, 10> counts_{};  // the last counts 256 steps and more
};

class WaitingSums {
 public:
  WaitingSums(const BucketLayout& layout, const VarianceOptions& options);

  // Adds a step's gradient to the sums and finds the unambiguous ones. If memory runs out, every
  // sum has received its gradient and none is sent.
  void collect(const Bucket& bucket);
  // The unambiguous sums of an element range, ascending.
  struct Found {
    std::span<const std::uint32_t> indices;
    std::span<const float> values;
  };
  [[nodiscard]] Found found(Range range) const;
  [[nodiscard]] Range all() const { return {0, sums_.size()}; }

  // Returns the compressed tensors inside a range, with offsets from its start.
  [[nodiscard]] std::vector<VarianceTensor> tensors_in(Range range) const;
  // Replaces `sent` by the payload's content for the unambiguous sums of a range, with indices from
  // its start. Sums that are too small for their tensor are left out.
  void encode(Range range, VarianceSent& sent) const { encode(range, tensors_in(range), sent); }
  // The same, where the tensors in the range are known.
  void encode(Range range, std::span<const VarianceTensor> tensors, VarianceSent& sent) const;

  // After the exchange: the sums that encode() puts into `sent` for this range have arrived. The
  // others keep waiting.
  void settle(Range range, const VarianceSent& sent);
  // After the exchange, at an owner: `left` is what remains of the totals of its range, in which
  // its unambiguous sums were complete; those that `is_answered` marks were sent.
  void settle_owned(Range range, std::span<const float> left,
                    std::span<const std::uint8_t> is_answered);
  // After a failed exchange: all sums keep waiting.
  void keep_waiting();
  // Ends the step and reports its statistics.
  void finish(const Bucket& bucket, Exchange& exchange);

  void add_to(std::span<float> values) const;
  void state(Archive& archive);

 private:
  // A run of elements that is collected at a time.
  struct Run {
    Range elements;
    std::size_t tensor = 0;
  };
  // Calls visit(run) for all runs from the given one on, in order.
  template <typename Visit>
  void for_runs(Run from, Visit&& visit) const;
  // Adds the gradient of a run and writes its unambiguous sums to `out`; returns their number.
  [[nodiscard]] std::size_t collect_run(const Bucket& bucket, const Run& run,
                                        kernels::Candidates out);
  void make_room(std::size_t found);
  void deliver(std::uint32_t index, const VarianceSent& sent, std::size_t s,
               std::uint32_t exponent);
  void count_delay(std::uint32_t index);
  void wait_longer(std::uint32_t index) { squares_[index] *= options_.rule.zeta; }

  VarianceOptions options_;
  std::vector<VarianceTensor> tensors_;
  std::vector<float> alphas_;   // per tensor
  std::size_t compressed_ = 0;  // elements in all tensors
  std::vector<float> sums_;     // r
  std::vector<float> squares_;  // v
  std::vector<float> since_;    // per element: the step of the first gradient in its sum
  std::uint64_t steps_ = 0;
  // The current step: unambiguous sums.
  std::size_t found_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::size_t sent_ = 0;  // of these: the number that has arrived
  Delays delays_;
};

}  // namespace thinreduce

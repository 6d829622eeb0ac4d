// The order in which the ranks see the samples of a data set.
//
// An epoch is one shuffled order of all samples, the same for every world size. Each step takes the
// next ranks * batch samples, of which rank r gets the r-th part, so that N ranks with batches of B
// see the samples that one rank sees with batches of N*B. Samples that do not fill a whole step are
// left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thinreduce::train {

struct OrderOptions {
  std::uint64_t seed = 0;
  std::size_t batch = 32;  // samples per rank
  int rank = 0;
  int ranks = 1;
};

class SampleOrder {
 public:
  // `data` names the data set in errors. Throws Error{bad_input} when `samples` do not fill a step.
  SampleOrder(const OrderOptions& options, std::size_t samples, const std::string& data);

  [[nodiscard]] std::size_t steps_per_epoch() const;
  [[nodiscard]] std::uint64_t epoch_of(std::uint64_t step) const;
  // Returns this rank's samples of a step; steps count from 0 over all epochs.
  [[nodiscard]] std::span<const std::uint32_t> indices(std::uint64_t step);

 private:
  void shuffle(std::uint64_t epoch);

  OrderOptions options_;
  std::size_t samples_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> order_;  // of epoch_; empty before the first step
};

// Returns the steps of an epoch. Throws Error{bad_input} when there are none.
[[nodiscard]] std::size_t steps_per_epoch(const OrderOptions& options, std::size_t samples,
                                          const std::string& data);

}  // namespace thinreduce::train

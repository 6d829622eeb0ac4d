// Selects the elements of largest magnitude of each tensor, the same fraction of all: a layer whose
// gradients are small beside those of its neighbours would otherwise wait for long.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/methods/top_selector.h"

namespace thinreduce {

class TensorSelector {
 public:
  explicit TensorSelector(const BucketLayout& layout);

  // Returns the maximum number of values that are selected in a range of the bucket: the fraction
  // `density` of each tensor's part, and at least one.
  [[nodiscard]] std::size_t count(UnitRange range, double density) const;

  // Selects from `values`, those of a range of the bucket; indices count from its begin. Values
  // outside the tensors must be 0. The result is valid until the next call.
  [[nodiscard]] kernels::Selected select(std::span<const float> values, UnitRange range,
                                         double density, Workers workers = {});
  // Selects from the whole bucket except a range, whose values must be 0.
  [[nodiscard]] kernels::Selected select_around(UnitRange range, std::span<const float> values,
                                                double density);
  // Adds `addend` to the values of the bucket and selects from the sums.
  [[nodiscard]] kernels::Selected add_select(std::span<float> values, std::span<const float> addend,
                                             double density, Workers workers = {});

 private:
  // Calls visit(part) for the part of each tensor that lies in a range of the bucket.
  template <typename Visit>
  void for_tensors(UnitRange range, const Visit& visit) const;
  // Calls select(part, k) for all of them and joins what it returns; `skipped` is not counted.
  template <typename Select>
  kernels::Selected join(UnitRange range, UnitRange skipped, double density, const Select& select);

  std::size_t elements_;
  std::vector<UnitRange> tensors_;
  kernels::TopSelector selector_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
};

}  // namespace thinreduce

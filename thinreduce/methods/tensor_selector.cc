#include "thinreduce/methods/tensor_selector.h"

#include <algorithm>

#include "thinreduce/method/bucket.h"
#include "thinreduce/methods/topk_payload.h"

namespace thinreduce {
namespace {

UnitRange common(UnitRange a, UnitRange b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

TensorSelector::TensorSelector(const BucketLayout& layout) : elements_(layout.elements) {
  for_compressed(layout, [&](std::size_t first, std::size_t count) {
    tensors_.push_back({first, first + count});
  });
}

template <typename Visit>
void TensorSelector::for_tensors(UnitRange range, const Visit& visit) const {
  const auto first = std::upper_bound(
      tensors_.begin(), tensors_.end(), range.begin,
      [](std::size_t element, const UnitRange& tensor) { return element < tensor.end; });
  for (auto tensor = first; tensor != tensors_.end() && tensor->begin < range.end; ++tensor) {
    visit(common(*tensor, range));
  }
}

template <typename Select>
kernels::Selected TensorSelector::join(UnitRange range, UnitRange skipped, double density,
                                       const Select& select) {
  indices_.clear();
  values_.clear();
  // The indices of one tensor need no change.
  if (tensors_.size() == 1 && tensors_[0].begin <= range.begin) {
    const UnitRange part = common(tensors_[0], range);
    const std::size_t counted = part.size() - common(part, skipped).size();
    return counted == 0 ? kernels::Selected() : select(part, values_to_send(density, counted));
  }
  for_tensors(range, [&](UnitRange part) {
    const std::size_t counted = part.size() - common(part, skipped).size();
    if (counted == 0) return;
    const auto selected = select(part, values_to_send(density, counted));
    const auto offset = static_cast<std::uint32_t>(part.begin - range.begin);
    for (const std::uint32_t index : selected.indices) indices_.push_back(index + offset);
    values_.insert(values_.end(), selected.values.begin(), selected.values.end());
  });
  return {indices_, values_};
}

std::size_t TensorSelector::count(UnitRange range, double density) const {
  std::size_t count = 0;
  for_tensors(range, [&](UnitRange part) { count += values_to_send(density, part.size()); });
  return count;
}

kernels::Selected TensorSelector::select(std::span<const float> values, UnitRange range,
                                         double density, Workers workers) {
  return join(range, {}, density, [&](UnitRange part, std::size_t k) {
    return selector_.select(values.subspan(part.begin - range.begin, part.size()), k, workers);
  });
}

kernels::Selected TensorSelector::select_around(UnitRange range, std::span<const float> values,
                                                double density) {
  return join({0, elements_}, range, density, [&](UnitRange part, std::size_t k) {
    return selector_.select(values.subspan(part.begin, part.size()), k);
  });
}

kernels::Selected TensorSelector::add_select(std::span<float> values, std::span<const float> addend,
                                             double density, Workers workers) {
  return join({0, elements_}, {}, density, [&](UnitRange part, std::size_t k) {
    return selector_.add_select(values.subspan(part.begin, part.size()),
                                addend.subspan(part.begin, part.size()), k, workers);
  });
}

}  // namespace thinreduce

#include "thinreduce/methods/quantize/block_grid.h"

#include <utility>

namespace thinreduce {
namespace {

std::vector<std::size_t> borders_of(const BucketLayout& layout) {
  std::vector<std::size_t> borders;
  for (const Tensor& tensor : layout.tensors) {
    for (const std::size_t at : {tensor.offset, tensor.offset + tensor.elements()}) {
      const bool inside = at > 0 && at < layout.elements;
      if (inside && (borders.empty() || borders.back() < at)) borders.push_back(at);
    }
  }
  return borders;
}

}  // namespace

BlockGrid::BlockGrid(std::size_t elements, std::size_t block, std::vector<std::size_t> borders)
    : elements_(elements), block_(block), borders_(std::move(borders)) {
  for (const std::size_t border : borders_) {
    if (border % block_ != 0) cuts_.push_back(border);
  }
}

BlockGrid::BlockGrid(const BucketLayout& layout, std::size_t block)
    : BlockGrid(layout.elements, block, borders_of(layout)) {}

BlockGrid BlockGrid::with_block(std::size_t block) const {
  return {elements_, block, borders_};
}

BlockGrid BlockGrid::part(std::size_t first, std::size_t count) const {
  std::vector<std::size_t> inside;
  for (const std::size_t border : borders_) {
    if (border > first && border < first + count) inside.push_back(border - first);
  }
  return {count, block_, std::move(inside)};
}

std::size_t BlockGrid::next_begin(std::size_t element) const {
  const std::size_t whole = (element + block_ - 1) / block_ * block_;
  const auto cut = std::lower_bound(cuts_.begin(), cuts_.end(), element);
  return std::min({elements_, whole, cut == cuts_.end() ? elements_ : *cut});
}

}  // namespace thinreduce

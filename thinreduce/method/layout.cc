#include "thinreduce/method/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace thinreduce {
namespace {

// Returns the tensor with a name that an element is in; null if there is none.
const Tensor* tensor_at(const std::vector<Tensor>& tensors, std::uint64_t index) {
  const auto found = std::ranges::find_if(tensors, [&](const Tensor& tensor) {
    return !tensor.name.empty() && index >= tensor.offset &&
           index - tensor.offset < tensor.elements();
  });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

std::size_t Tensor::elements() const {
  std::size_t count = 1;
  for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

void BucketLayout::add(std::string tensor, std::vector<std::int64_t> shape) {
  tensors.push_back({.name = std::move(tensor), .shape = std::move(shape), .offset = elements});
  elements += tensors.back().elements();
}

std::string BucketLayout::describe_element(std::uint64_t index) const {
  if (const Tensor* tensor = tensor_at(tensors, index)) {
    return fmt::format("index {} (element {} of tensor '{}')", index, index - tensor->offset,
                       tensor->name);
  }
  return name.empty() ? fmt::format("index {}", index)
                      : fmt::format("index {} of '{}'", index, name);
}

std::string BucketLayout::describe_nonfinite(int rank, std::uint64_t index) const {
  const Tensor* tensor = tensor_at(tensors, index);
  if (kind == "gradient" || tensor == nullptr) {
    return fmt::format("the {} of rank {} is NaN or Inf at {}", kind, rank,
                       describe_element(index));
  }
  return fmt::format("the {} '{}' of rank {} is NaN or Inf at element {}", kind, tensor->name, rank,
                     index - tensor->offset);
}

}  // namespace thinreduce

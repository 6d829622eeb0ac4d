#include "thinreduce/method/layout.h"

#include <fmt/format.h>

#include <utility>

namespace thinreduce {

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
  for (const Tensor& tensor : tensors) {
    if (tensor.name.empty()) continue;
    if (index >= tensor.offset && index - tensor.offset < tensor.elements()) {
      return fmt::format("index {} (element {} of tensor '{}')", index, index - tensor.offset,
                         tensor.name);
    }
  }
  return name.empty() ? fmt::format("index {}", index)
                      : fmt::format("index {} of '{}'", index, name);
}

}  // namespace thinreduce

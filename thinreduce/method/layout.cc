#include "thinreduce/method/layout.h"

#include <utility>

namespace thinreduce {

std::size_t Tensor::elements() const {
  std::size_t count = 1;
  for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

void BucketLayout::add(std::string name, std::vector<std::int64_t> shape) {
  tensors.push_back({.name = std::move(name), .shape = std::move(shape), .offset = elements});
  elements += tensors.back().elements();
}

}  // namespace thinreduce

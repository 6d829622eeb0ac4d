// How a run of units is cut into parts: contiguous, in order, sizes that differ by one at most.
#pragma once

#include <cstddef>

namespace thinreduce {

// Units [begin, end) of a payload.
struct UnitRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

// Part `index` of `parts`. Parts may be empty when there are more parts than units.
[[nodiscard]] inline UnitRange cut(UnitRange whole, std::size_t parts, std::size_t index) {
  return {whole.begin + whole.size() * index / parts,
          whole.begin + whole.size() * (index + 1) / parts};
}

}  // namespace thinreduce

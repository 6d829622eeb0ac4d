// Ranges of units, and how a range is cut: into contiguous parts, in order, whose sizes differ by
// at most one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace thinreduce {

// Units [begin, end) of a payload.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

// Returns part `index` of `parts`. With more parts than units, some are empty.
[[nodiscard]] inline Range cut(Range whole, std::size_t parts, std::size_t index) {
  return {whole.begin + whole.size() * index / parts,
          whole.begin + whole.size() * (index + 1) / parts};
}

// Returns into how many messages each of `chunks` chunks of a payload is cut, so that a message has
// at most `max_bytes`, or one unit.
[[nodiscard]] inline std::size_t messages_per_chunk(Range whole, std::size_t chunks,
                                                    std::size_t unit_bytes, std::size_t max_bytes) {
  const std::size_t longest_chunk = (whole.size() + chunks - 1) / chunks;
  const std::size_t per_message = std::max<std::size_t>(1, max_bytes / unit_bytes);
  return std::max<std::size_t>(1, (longest_chunk + per_message - 1) / per_message);
}

// Returns the elements of a range, where a unit is one element.
template <typename T>
[[nodiscard]] std::span<T> part(std::span<T> elements, Range range) {
  return elements.subspan(range.begin, range.size());
}

}  // namespace thinreduce

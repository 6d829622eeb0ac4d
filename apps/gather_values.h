// Small values that every rank gathers from all ranks between steps; also serves as a barrier.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <vector>

#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {

// Returns the values of all ranks in rank order. Every rank must pass the same number of values.
// They go through rank 0, so that many ranks need few messages.
template <typename T>
std::vector<std::vector<T>> gather_lists(Transport& transport, Seconds timeout,
                                         std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  Exchange exchange(transport, timeout, {});
  const auto world = static_cast<std::size_t>(transport.size());
  const auto require = [](std::size_t rank, std::size_t bytes, std::size_t expected) {
    if (bytes == expected) return;
    throw Error(ErrorCode::bad_frame,
                fmt::format("rank {} sent {} bytes of run figures, expected {}; all ranks must run "
                            "the same version and options",
                            rank, bytes, expected));
  };
  const std::vector<std::byte> bytes = through_root(
      exchange, 0, std::as_bytes(values), world * values.size_bytes(), [&](const auto& payloads) {
        std::vector<std::byte> answer;
        for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
          require(rank, payloads[rank].size(), values.size_bytes());
          answer.insert(answer.end(), payloads[rank].begin(), payloads[rank].end());
        }
        return answer;
      });
  require(0, bytes.size(), world * values.size_bytes());
  std::vector<std::vector<T>> all(world, std::vector<T>(values.size()));
  for (std::size_t rank = 0; rank < world && !values.empty(); ++rank) {
    std::memcpy(all[rank].data(), &bytes[rank * values.size_bytes()], values.size_bytes());
  }
  return all;
}

// Returns one value per rank.
template <typename T>
std::vector<T> gather_values(Transport& transport, Seconds timeout, const T& value) {
  std::vector<T> all;
  for (const auto& one : gather_lists(transport, timeout, std::span<const T>(&value, 1))) {
    all.push_back(one[0]);
  }
  return all;
}

inline void barrier(Transport& transport, Seconds timeout) {
  (void)gather_values(transport, timeout, 0);
}

}  // namespace thinreduce::apps

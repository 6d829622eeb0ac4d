// Small values that every rank gathers from all ranks between steps; also serves as a barrier.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {

// Returns the values of all ranks in rank order. Every rank must pass the same number of values.
template <typename T>
std::vector<std::vector<T>> gather_lists(Transport& transport, Seconds timeout,
                                         std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  Exchange exchange(transport, timeout, {});
  std::vector<std::vector<T>> all;
  gather(exchange, std::as_bytes(values), values.size_bytes(),
         [&](int rank, std::span<const std::byte> payload) {
           if (payload.size() != values.size_bytes()) {
             throw Error(ErrorCode::bad_frame,
                         fmt::format("rank {} sent {} bytes of run figures, expected {}; all ranks "
                                     "must run the same version and options",
                                     rank, payload.size(), values.size_bytes()));
           }
           std::vector<T> theirs(values.size());
           if (!payload.empty()) std::memcpy(theirs.data(), payload.data(), payload.size());
           all.push_back(std::move(theirs));
         });
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

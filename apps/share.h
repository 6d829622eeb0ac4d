// Figures that every rank tells every other, between steps. Also a barrier.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {

// Everybody's values at every rank, in rank order. All ranks must give equally many.
template <typename T>
std::vector<std::vector<T>> share_all(Transport& transport, Seconds timeout,
                                      std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  Exchange exchange(transport, timeout, {});
  std::vector<std::vector<T>> all;
  gather(exchange, std::as_bytes(values), values.size_bytes(),
         [&](int rank, std::span<const std::byte> payload) {
           if (payload.size() != values.size_bytes()) {
             throw Error(ErrorCode::bad_frame,
                         fmt::format("figures of rank {}: {} bytes, expected {}", rank,
                                     payload.size(), values.size_bytes()));
           }
           std::vector<T> theirs(values.size());
           if (!payload.empty()) std::memcpy(theirs.data(), payload.data(), payload.size());
           all.push_back(std::move(theirs));
         });
  return all;
}

// One value of each rank.
template <typename T>
std::vector<T> share(Transport& transport, Seconds timeout, const T& value) {
  std::vector<T> all;
  for (const auto& one : share_all(transport, timeout, std::span<const T>(&value, 1))) {
    all.push_back(one[0]);
  }
  return all;
}

}  // namespace thinreduce::apps

// Helpers for tests of kernels: sizes that reach every path, guarded spans at odd addresses, and
// checks on all targets.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "thinreduce/kernels/target.h"

namespace thinreduce::kernels {

inline constexpr std::size_t kSizes[] = {0,  1,  2,  3,  7,  8,   9,    15,   16,    17,
                                         31, 33, 63, 64, 65, 127, 1000, 1009, 65535, 65537};
// Offsets of a span from an aligned address, in elements.
inline constexpr std::size_t kOffsets[] = {0, 1, 3};

// A span that starts `offset` elements after an aligned address and has guards on both sides.
template <typename T>
class Guarded {
 public:
  Guarded(std::size_t size, std::size_t offset)
      : begin_(kGuard + offset), size_(size), memory_(begin_ + size + kGuard) {
    std::memset(memory_.data(), kPattern, memory_.size() * sizeof(T));
  }
  Guarded(std::span<const T> values, std::size_t offset) : Guarded(values.size(), offset) {
    std::copy(values.begin(), values.end(), memory_.begin() + static_cast<long>(begin_));
  }
  [[nodiscard]] std::span<T> span() { return std::span(memory_).subspan(begin_, size_); }
  [[nodiscard]] bool intact() const {
    const auto bytes = std::as_bytes(std::span(memory_));
    const std::size_t from = begin_ * sizeof(T);
    const std::size_t to = from + size_ * sizeof(T);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if ((i < from || i >= to) && bytes[i] != std::byte{kPattern}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kPattern = 0xa5;
  std::size_t begin_;
  std::size_t size_;
  std::vector<T> memory_;
};

// Returns normally distributed values among zeros of both signs, denormals, ties and huge values.
inline std::vector<float> mixed_floats(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& value : values) {
    value = normal(random);
    switch (random() % 16) {
      case 0:
        value = 0;
        break;
      case 1:
        value = -0.0f;
        break;
      case 2:
        value *= 1e-40f;
        break;
      case 3:
        value = static_cast<float>(static_cast<int>(value * 2));
        break;
      case 4:
        value *= 1e37f;
        break;
      default:
        break;
    }
  }
  return values;
}

// Compares bits, since EXPECT_EQ of floats takes -0 for +0.
template <typename T>
[[nodiscard]] bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Runs `check` once for each target of this CPU and restores the active target.
template <typename Check>
void on_every_target(Check&& check) {
  const auto before = active_target();
  for (const auto& name : available_targets()) {
    SCOPED_TRACE(name);
    use_target(name);
    check();
  }
  use_target(before);
}

// Runs `check(size, offset)` for all sizes and offsets.
template <typename Check>
void at_every_size(Check&& check) {
  for (const auto size : kSizes) {
    for (const auto offset : kOffsets) {
      SCOPED_TRACE(testing::Message() << size << " elements at offset " << offset);
      check(size, offset);
    }
  }
}

}  // namespace thinreduce::kernels

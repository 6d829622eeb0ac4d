// Random values, and random damage of bytes, for tests.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace thinreduce {

// Returns normally distributed values; the same seed gives the same values.
inline std::vector<float> normal_floats(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& value : values) value = normal(random);
  return values;
}

// Flips bits of, or replaces, as many bytes as `changes` says; one time in four also cuts or
// lengthens them.
inline void damage(std::vector<std::byte>& bytes, unsigned changes, std::mt19937& random) {
  for (; changes > 0 && !bytes.empty(); --changes) {
    auto& byte = bytes[random() % bytes.size()];
    byte = random() % 2 == 0 ? byte ^ static_cast<std::byte>(1U << random() % 8)
                             : static_cast<std::byte>(random());
  }
  if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 20));
}

}  // namespace thinreduce

#include "thinreduce/methods/gradiveq_layer.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/collective/chunks.h"

namespace thinreduce {
namespace {

// Finalizer of SplitMix64: turns a counter into 64 well-mixed bits.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

}  // namespace

void draw_slices(const SampleKey& key, std::size_t slices, std::size_t count,
                 std::vector<std::size_t>& drawn) {
  count = std::min(count, slices);
  const std::uint64_t stream = mix(mix(mix(mix(key.seed) ^ key.step) ^ key.bucket) ^ key.layer);
  for (std::size_t i = 0; i < count; ++i) {
    const UnitRange part = cut({0, slices}, count, i);
    drawn.push_back(part.begin + mix(stream ^ i) % part.size());
  }
}

Due due_at(std::uint64_t step, double rate) {
  const auto until = [&](std::uint64_t steps) {
    return static_cast<std::size_t>(std::floor(static_cast<double>(steps) * rate));
  };
  return {until(step), until(step + 1) - until(step)};
}

}  // namespace thinreduce

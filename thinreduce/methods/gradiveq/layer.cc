#include "thinreduce/methods/gradiveq/layer.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
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

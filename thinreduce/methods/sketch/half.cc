#include "thinreduce/methods/sketch/half.h"

#include "thinreduce/ensure.h"

namespace thinreduce::kernels {

void to_half(std::span<const float> values, float scale, std::span<std::uint16_t> halves) {
  ensure(values.size() == halves.size(), "to_half: spans must have the same length", values.size(),
         halves.size());
  for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_half(values[i] * scale);
}

void from_half(std::span<const std::uint16_t> halves, float scale, std::span<float> values) {
  ensure(values.size() == halves.size(), "from_half: spans must have the same length",
         values.size(), halves.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = from_half(halves[i]) * scale;
}

}  // namespace thinreduce::kernels

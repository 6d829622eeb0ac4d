// Momentum and error accumulation in one pass over memory.
#pragma once

#include <span>

namespace thinreduce::kernels {

// velocity[i] = momentum * velocity[i] + gradient[i]; sum[i] += velocity[i]
struct Momentum {
  std::span<float> velocity;
  std::span<float> sum;
};
void take_in(const Momentum& into, std::span<const float> gradient, float momentum);

// The scalar definition of the function above.
namespace reference {
void take_in(const Momentum& into, std::span<const float> gradient, float momentum);
}  // namespace reference

}  // namespace thinreduce::kernels

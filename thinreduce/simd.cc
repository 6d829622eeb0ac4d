#include "thinreduce/simd.h"

#include "thinreduce/kernels/target.h"

namespace thinreduce {

std::vector<std::string> simd_targets() {
  return kernels::available_targets();
}

std::string simd_target() {
  return kernels::active_target();
}

void use_simd_target(std::string_view name) {
  kernels::use_target(name);
}

}  // namespace thinreduce

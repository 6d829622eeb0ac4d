// The two functions of Highway's library that its headers call.
#include "hwy/highway.h"
#include "thinreduce/kernels/no_libhwy/cpu_targets.h"

namespace hwy {

std::int64_t SupportedTargets() {
  return thinreduce::kernels::cpu_targets() | HWY_SCALAR;
}

// Highway's own choice, which thinreduce does not use; see kernels/dispatch.h.
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy

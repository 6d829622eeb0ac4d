#include "thinreduce/kernels/no_libhwy/cpu_targets.h"

#include "hwy/highway.h"

#if HWY_ARCH_ARM_A64
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace thinreduce::kernels {

// A later Highway may compile a target for more instructions than the code below asks for.
static_assert(HWY_MAJOR == 1 && HWY_MINOR == 0,
              "this Highway is newer than 1.0: install it as a static library");

#if HWY_ARCH_X86

// Asks for the instructions that Highway names in ops/set_macros-inl.h, with which it compiles each
// target. The compiler's check of AVX includes that of the kernel.
std::int64_t cpu_targets() {
  __builtin_cpu_init();
  std::int64_t targets = 0;
  if (__builtin_cpu_supports("ssse3") == 0) return targets;
  targets |= HWY_SSSE3;
  if (__builtin_cpu_supports("sse4.1") == 0 || __builtin_cpu_supports("sse4.2") == 0 ||
      __builtin_cpu_supports("aes") == 0 || __builtin_cpu_supports("pclmul") == 0) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("bmi") == 0 ||
      __builtin_cpu_supports("bmi2") == 0 || __builtin_cpu_supports("fma") == 0 ||
      __builtin_cpu_supports("f16c") == 0 || __builtin_cpu_supports("lzcnt") == 0) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0) {
    targets |= HWY_AVX3;
  }
  return targets;
}

#elif HWY_ARCH_ARM_A64

// Highway has targets of their own for SVE with vectors of 32, and SVE2 with vectors of 16 bytes.
std::int64_t cpu_targets() {
  const unsigned long first = ::getauxval(AT_HWCAP);
  const unsigned long second = ::getauxval(AT_HWCAP2);
  const bool sve = (first & HWCAP_SVE) != 0;
  const bool sve2 = (second & HWCAP2_SVE2) != 0 && (second & HWCAP2_SVEAES) != 0;
  const int length = sve ? ::prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK : 0;
  std::int64_t targets = (first & HWCAP_AES) != 0 ? HWY_NEON : 0;
  if (sve) targets |= HWY_SVE;
  if (sve && length == 32) targets |= HWY_SVE_256;
  if (sve2) targets |= HWY_SVE2;
  if (sve2 && length == 16) targets |= HWY_SVE2_128;
  return targets;
}

#else

std::int64_t cpu_targets() {
  return 0;  // the reference
}

#endif

}  // namespace thinreduce::kernels

// main() of every unit test program. THINREDUCE_SIMD chooses the instruction set; one that this CPU
// does not have ends the program with CTest's code for "skipped".
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "thinreduce/kernels/target.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (const char* wanted = std::getenv("THINREDUCE_SIMD")) {
    const auto available = thinreduce::kernels::available_targets();
    if (std::find(available.begin(), available.end(), std::string(wanted)) == available.end()) {
      std::printf("this CPU has no %s\n", wanted);
      return kSkipped;
    }
  }
  std::printf("kernels: %s\n", thinreduce::kernels::active_target().c_str());
  return RUN_ALL_TESTS();
}

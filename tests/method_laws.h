// The specs that a law of methods is tried with, their worlds and their gradients.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/test_world.h"
#include "thinreduce/kernels/target.h"

namespace thinreduce {

inline bool reads_second_moments(const std::string& spec) {
  return Spec::parse(spec).info->second_moment;
}

// One spec and the worlds that it is tried in: every method at its default in all of them.
struct Law {
  std::string spec;
  std::vector<int> worlds;
};

inline std::vector<Law> laws() {
  std::vector<Law> all;
  const std::size_t defaults = default_specs().size();
  for (const std::string& spec : law_specs()) {
    all.push_back({spec, all.size() < defaults ? std::vector{1, 2, 3, 5, 8} : std::vector{2, 3}});
  }
  return all;
}

// Says how a method takes the gradients of one step; second moments go with those that read them.
inline PerRank law_gradients(TestWorld& ranks, const Law& law, int world, unsigned step) {
  if (reads_second_moments(law.spec)) {
    ranks.second_moments = random_moments(world, ranks.elements(), step);
  }
  return normal_gradients(world, ranks.elements(), step);
}

inline std::string law_name(const testing::TestParamInfo<Law>& info) {
  return test_name(info.param.spec);
}

// Returns the layouts that a law is tried with: sizes from none to a bucket of several tensors.
inline std::vector<BucketLayout> law_layouts() {
  return {shapeless(0), shapeless(1), shapeless(63), shapeless(1009), mixed_layout()};
}

// Returns the laws whose method keeps a residual, which shows a summed field to an archive, and
// whose means and residuals add up.
inline std::vector<Law> keeping_laws() {
  std::vector<Law> keeping;
  // This runs before main(), which skips the program when the CPU lacks the wanted target.
  const char* const wanted = std::getenv("THINREDUCE_SIMD");
  const auto available = kernels::available_targets();
  if (wanted != nullptr && std::ranges::find(available, wanted) == available.end()) return keeping;
  for (Law& law : laws()) {
    TestWorld ranks(1, law.spec, 100);
    if (ranks.saved(0).has_summed && balances(law.spec)) keeping.push_back(std::move(law));
  }
  return keeping;
}

}  // namespace thinreduce

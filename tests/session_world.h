// Helpers for tests of the session: gradients, a bucket of tensors and a folder for states.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/temporary_folder.h"
#include "thinreduce/method/layout.h"

namespace thinreduce {

inline std::vector<float> gradient(std::size_t size, int rank, std::uint64_t step) {
  std::vector<float> values(size);
  std::uint64_t state = static_cast<std::uint64_t>(rank) * 1000003 + step * 7919 + 1;
  for (auto& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) / 2147483648.0F;
  }
  return values;
}

inline std::vector<double> true_mean(std::size_t size, int world, std::uint64_t step) {
  std::vector<double> mean(size);
  for (int rank = 0; rank < world; ++rank) {
    const auto values = gradient(size, rank, step);
    for (std::size_t i = 0; i < size; ++i) mean[i] += static_cast<double>(values[i]) / world;
  }
  return mean;
}

// A convolution weight, a bias, a matrix, and a matrix too small to compress.
inline BucketLayout mixed_layout(std::uint32_t id) {
  BucketLayout layout{.id = id, .elements = 0, .tensors = {}};
  layout.add("conv.weight", {16, 8, 3, 3});
  layout.add("conv.bias", {16});
  layout.add("fc.weight", {40, 101});
  layout.add("small.weight", {3, 5});
  return layout;
}

inline std::filesystem::path state_path(const Folder& folder, int rank) {
  return folder.path / ("rank" + std::to_string(rank) + ".state");
}

// A law that holds for every method in every world: GetParam() is the spec and the number of ranks.
class Sessions : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  [[nodiscard]] std::string spec() const { return std::get<0>(GetParam()); }
  [[nodiscard]] int world() const { return std::get<1>(GetParam()); }
  // Enough steps that the method compresses in `more` of them.
  [[nodiscard]] std::uint64_t steps(unsigned more) const { return steps_of(spec(), more); }
};

// Returns every method at its default in many worlds, its other words in two, and some specs whose
// numbers take another way through the code.
inline std::vector<std::tuple<std::string, int>> every_method_and_world() {
  std::vector<std::tuple<std::string, int>> cases;
  const std::vector<std::string> defaults = default_specs();
  for (const std::string& spec : defaults) {
    for (const int world : {1, 2, 3, 5, 8}) {
      if (world <= (kSanitized ? 3 : 8)) cases.emplace_back(spec, world);
    }
  }
  const std::vector<std::string> all = law_specs();
  for (std::size_t i = defaults.size(); i < all.size(); ++i) cases.emplace_back(all[i], 3);
  for (const char* spec : {"gradiveq:warmup=2", "sketch:momentum=0.9", "topk:density=0.1",
                           "variance:tau=0.1,index=28bit", "dqsg:feedback=on,collective=owner"}) {
    for (const int world : {1, 2, 4}) cases.emplace_back(spec, world);
  }
  return cases;
}

inline std::string session_case_name(
    const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return test_name(std::get<0>(info.param)) + "_on_" + std::to_string(std::get<1>(info.param));
}

}  // namespace thinreduce

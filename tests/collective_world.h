// Worlds, sizes and values over which the laws of the collectives are tested.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "thinreduce/collective/choose.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce::testing_support {

inline constexpr FrameId kId{.method = 9, .bucket = 1, .step = 2, .elements = 3, .layout_hash = 4};

// Small whole numbers: sums are exact, so the expected value does not depend on the order.
inline std::vector<float> whole_numbers(std::size_t size, int rank) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1000) - 500;
  }
  return values;
}

inline std::vector<float> fractions(std::size_t size, int rank) {
  auto values = whole_numbers(size, rank);
  for (auto& value : values) value = value / 3 + 0.1F;
  return values;
}

// The results of all ranks, compared at the end.
class Results {
 public:
  void add(const std::vector<float>& values) {
    const std::lock_guard lock(mutex_);
    all_.push_back(values);
  }
  void expect_same_bits(int world) const {
    ASSERT_EQ(all_.size(), static_cast<std::size_t>(world));
    for (const auto& values : all_) {
      ASSERT_EQ(values.size(), all_[0].size());
      if (values.empty()) continue;
      EXPECT_EQ(std::memcmp(values.data(), all_[0].data(), values.size() * sizeof(float)), 0);
    }
  }
  [[nodiscard]] const std::vector<float>& first() const { return all_.at(0); }

 private:
  std::mutex mutex_;
  std::vector<std::vector<float>> all_;
};

struct CollectiveCase {
  int world;
  std::size_t size;
};

inline std::vector<CollectiveCase> cases() {
  std::vector<CollectiveCase> all;
  for (const int world : {1, 2, 3, 4, 7, 8}) {
    for (const std::size_t size : {0, 1, 2, 5, 13, 64, 1009, 20011}) all.push_back({world, size});
  }
  return all;
}

class CollectiveTest : public testing::TestWithParam<CollectiveCase> {
 protected:
  [[nodiscard]] int world() const { return GetParam().world; }
  [[nodiscard]] std::size_t size() const { return GetParam().size; }
  // Returns the options that a ring of floats uses: a chunk of many segments has half as many.
  [[nodiscard]] RingOptions for_floats() const {
    RingOptions options = ring_.ring;
    const std::size_t chunk = size() * sizeof(float) / static_cast<std::size_t>(world());
    if (chunk >= 16 * options.segment_bytes) options.segment_bytes *= 2;
    return options;
  }

  // With 100-byte segments, the large sizes have hundreds of segments per chunk.
  const SumOptions ring_{.by = SumBy::ring, .ring = {.segment_bytes = 100}};
  const SumOptions owner_{.by = SumBy::owner, .owner = {.piece_bytes = 100, .ahead = 2}};
  const SumOptions direct_{.by = SumBy::direct};
};

inline std::string case_name(const testing::TestParamInfo<CollectiveCase>& test) {
  return std::to_string(test.param.world) + "ranks_" + std::to_string(test.param.size);
}

}  // namespace thinreduce::testing_support

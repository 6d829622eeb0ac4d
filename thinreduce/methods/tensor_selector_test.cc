#include "thinreduce/methods/tensor_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/test_world.h"
#include "thinreduce/methods/topk_payload.h"

namespace thinreduce {
namespace {

// A bucket with elements between and after its tensors that are not compressed, whose values are 0.
BucketLayout three_tensors() {
  BucketLayout layout;
  layout.add("a", {30, 10});
  layout.elements += 7;
  layout.add("b", {5});
  layout.add("c", {20, 40});
  layout.elements += 3;
  return layout;
}

std::vector<float> values_for(const BucketLayout& layout) {
  auto values = normal_gradients(1, layout.elements, 3)[0];
  for_uncompressed(layout, [&](std::size_t first, std::size_t count) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
  });
  return values;
}

// Keeps the largest of each tensor's part in the range, except in `skipped`, by a full sort.
std::vector<float> expected(const BucketLayout& layout, const std::vector<float>& values,
                            UnitRange range, UnitRange skipped, double density) {
  std::vector<float> kept(range.size());
  for_compressed(layout, [&](std::size_t first, std::size_t count) {
    std::vector<std::size_t> order;
    for (std::size_t i = first; i < first + count; ++i) {
      const bool skip = i >= skipped.begin && i < skipped.end;
      if (i >= range.begin && i < range.end && !skip) order.push_back(i);
    }
    if (order.empty()) return;
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return std::abs(values[a]) > std::abs(values[b]); });
    order.resize(values_to_send(density, order.size()));
    for (const std::size_t i : order) kept[i - range.begin] = values[i];
  });
  return kept;
}

std::vector<float> scattered(const kernels::Selected& selected, std::size_t elements) {
  std::vector<float> kept(elements);
  for (std::size_t i = 0; i < selected.indices.size(); ++i) {
    if (i > 0) EXPECT_LT(selected.indices[i - 1], selected.indices[i]);
    kept[selected.indices[i]] = selected.values[i];
  }
  return kept;
}

TEST(TensorSelector, SelectsTheSameFractionOfEachTensor) {
  BucketLayout shapeless;
  shapeless.elements = 1000;
  BucketLayout one;
  one.add("a", {20, 20});
  one.elements += 100;
  for (const BucketLayout& layout : {three_tensors(), shapeless, one}) {
    const auto values = values_for(layout);
    const UnitRange all{0, layout.elements};
    for (const double density : {1e-6, 0.03, 0.4, 1.0}) {
      TensorSelector selector(layout);
      for (const UnitRange range : {all, UnitRange{0, 300}, UnitRange{299, 330},
                                    UnitRange{310, 311}, UnitRange{100, 100}}) {
        const auto part = std::span(values).subspan(range.begin, range.size());
        const auto selected = selector.select(part, range, density);
        EXPECT_LE(selected.indices.size(), selector.count(range, density));
        EXPECT_EQ(scattered(selected, range.size()), expected(layout, values, range, {}, density));
      }
      auto sums = values;
      std::fill(sums.begin(), sums.end(), 0.0f);
      EXPECT_EQ(scattered(selector.add_select(sums, values, density), layout.elements),
                expected(layout, values, all, {}, density));
      EXPECT_EQ(sums, values);
    }
  }
}

TEST(TensorSelector, LeavesARangeOut) {
  const BucketLayout layout = three_tensors();
  const UnitRange all{0, layout.elements};
  for (const UnitRange own : {UnitRange{0, 400}, UnitRange{250, 320}, UnitRange{0, 0}, all}) {
    auto values = values_for(layout);
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(own.begin),
              values.begin() + static_cast<std::ptrdiff_t>(own.end), 0.0f);
    TensorSelector selector(layout);
    EXPECT_EQ(scattered(selector.select_around(own, values, 0.1), layout.elements),
              expected(layout, values, all, own, 0.1));
  }
}

// A layer a thousand times smaller than its neighbour gets its turn in the first step.
TEST(TensorSelector, ASmallLayerIsSentBesideALargeOne) {
  const BucketLayout layout = layout_of({{40, 50}, {30, 50}});
  auto gradients = normal_gradients(2, layout.elements, 5);
  for (auto& gradient : gradients) {
    for (std::size_t i = 2000; i < gradient.size(); ++i) gradient[i] *= 1e-3f;
  }
  for (const std::string collective : {"gather", "owner"}) {
    TestWorld ranks(2, "topk:density=0.1,collective=" + collective, layout);
    const auto mean = ranks.mean(gradients);
    EXPECT_GE(std::count_if(mean.begin() + 2000, mean.end(), [](float v) { return v != 0; }), 150);
  }
}

}  // namespace
}  // namespace thinreduce

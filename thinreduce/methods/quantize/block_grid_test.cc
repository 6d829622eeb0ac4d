#include <gtest/gtest.h>

#include <tuple>

#include "tests/test_world.h"
#include "thinreduce/methods/quantize/block_grid.h"

namespace thinreduce::block_grid_test {
namespace {

using Parts = std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>;

Parts parts_of(const BlockGrid& grid, std::size_t first, std::size_t count) {
  Parts parts;
  grid.for_each_block(first, count, [&](std::size_t index, std::size_t at, std::size_t run) {
    parts.emplace_back(index, first + at, run);
  });
  return parts;
}

// Two tensors with two elements between them and three after them that are not compressed.
BucketLayout two_tensors() {
  BucketLayout layout;
  layout.add("a", {10});
  layout.elements += 2;
  layout.add("b", {13});
  layout.elements += 3;
  return layout;
}

TEST(BlockGrid, NoBlockHasElementsOfTwoTensors) {
  const BlockGrid grid(two_tensors(), 8);
  const Parts expected{{0, 0, 8},  {1, 8, 2},  {2, 10, 2}, {3, 12, 4},
                       {4, 16, 8}, {5, 24, 1}, {6, 25, 3}};
  EXPECT_EQ(parts_of(grid, 0, 28), expected);
  EXPECT_EQ(grid.blocks(), expected.size());
}

TEST(BlockGrid, ABlockPerLayer) {
  const BlockGrid grid(two_tensors(), BlockGrid::kWholeLayer);
  const Parts expected{{0, 0, 10}, {1, 10, 2}, {2, 12, 13}, {3, 25, 3}};
  EXPECT_EQ(parts_of(grid, 0, 28), expected);
  EXPECT_EQ(grid.blocks(), expected.size());
}

TEST(BlockGrid, WithoutTensorsBlocksHaveOneSize) {
  BucketLayout layout;
  layout.elements = 20;
  for (const BlockGrid& grid : {BlockGrid(layout, 8), BlockGrid(20, 8)}) {
    EXPECT_EQ(parts_of(grid, 0, 20), (Parts{{0, 0, 8}, {1, 8, 8}, {2, 16, 4}}));
  }
  EXPECT_EQ(BlockGrid(16, 8).blocks(), 2u);
  EXPECT_EQ(BlockGrid(0, 8).blocks(), 0u);
}

// However a bucket is divided, each element is in the block that the whole says.
TEST(BlockGrid, PiecesAgreeWithTheWhole) {
  for (const std::size_t block :
       {std::size_t{1}, std::size_t{5}, std::size_t{8}, std::size_t{100}, BlockGrid::kWholeLayer}) {
    const BlockGrid grid(two_tensors(), block);
    std::vector<std::size_t> block_of(grid.elements());
    for (const auto& [index, first, run] : parts_of(grid, 0, grid.elements())) {
      EXPECT_TRUE(grid.begins_at(first));
      EXPECT_EQ(grid.next_begin(first), first);
      for (std::size_t i = first; i < first + run; ++i) block_of[i] = index;
      if (run > 1) {
        EXPECT_EQ(grid.next_begin(first + 1), first + run);
      }
    }
    EXPECT_EQ(block_of.back() + 1, grid.blocks());
    for (std::size_t first = 0; first < grid.elements(); ++first) {
      for (std::size_t count = 1; first + count <= grid.elements(); ++count) {
        for (const auto& [index, at, run] : parts_of(grid, first, count)) {
          for (std::size_t i = at; i < at + run; ++i) EXPECT_EQ(index, block_of[i]);
        }
      }
    }
  }
}

TEST(BlockGrid, ARunOfItsOwnKeepsTheBordersOfTensors) {
  const BlockGrid run = BlockGrid(two_tensors(), 8).part(11, 16);
  EXPECT_EQ(run.elements(), 16u);
  const Parts expected{{0, 0, 1}, {1, 1, 7}, {2, 8, 6}, {3, 14, 2}};
  EXPECT_EQ(parts_of(run, 0, 16), expected);
  EXPECT_EQ(parts_of(BlockGrid(two_tensors(), 8).with_block(16), 0, 28),
            (Parts{{0, 0, 10}, {1, 10, 2}, {2, 12, 4}, {3, 16, 9}, {4, 25, 3}}));
}

// One layer is a thousand times smaller than its neighbour. If they shared a scale it would drown
// in the neighbour's quantization noise.
TEST(BlockGrid, ASmallLayerKeepsItsPrecisionBesideALargeOne) {
  BucketLayout layout;
  layout.add("large", {40, 50});
  layout.add("small", {30, 50});
  auto gradients = normal_gradients(2, layout.elements, 5);
  for (auto& gradient : gradients) {
    for (std::size_t i = 2000; i < gradient.size(); ++i) gradient[i] *= 1e-3f;
  }
  const auto sum = exact_sum(gradients);
  for (const std::string method :
       {"dqsg:levels=15", "dqsg:levels=15,collective=gather", "dqsg:levels=15,collective=owner",
        "ndqsg:levels=7", "qsgd:bits=8", "qsgd:bits=8,collective=owner", "terngrad",
        "terngrad:collective=owner"}) {
    for (const std::string block : {"layer", "3000"}) {
      const auto spec =
          method + (method.find(':') == std::string::npos ? ":" : ",") + "block=" + block;
      TestWorld world(2, spec, layout);
      const auto mean = world.mean(gradients);
      double error = 0;
      double energy = 0;
      for (std::size_t i = 2000; i < mean.size(); ++i) {
        const double difference = mean[i] - sum[i] / 2;
        error += difference * difference;
        energy += sum[i] * sum[i] / 4;
      }
      EXPECT_LT(error, (method.find("terngrad") == 0 ? 4 : 2) * energy) << spec;
    }
  }
}

}  // namespace
}  // namespace thinreduce::block_grid_test

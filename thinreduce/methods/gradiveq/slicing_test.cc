#include "thinreduce/methods/gradiveq/slicing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace thinreduce::slicing_test {
namespace {

Tensor tensor_of(std::vector<std::int64_t> shape, std::size_t offset = 0) {
  return {.name = "t", .shape = std::move(shape), .offset = offset};
}

// Which element of the bucket is at each place of the string.
std::vector<float> order_of(const Slicing& slicing, std::size_t bucket) {
  std::vector<float> numbers(bucket);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  std::vector<float> order(slicing.elements());
  slicing.gather(numbers, 0, order);
  return order;
}

TEST(Slicing, OrdersOfAConvolution) {
  const std::size_t f = 3, d = 2, h = 2, w = 5;
  const auto tensor = tensor_of({3, 2, 2, 5}, 7);
  const auto at = [&](std::size_t i, std::size_t j, std::size_t y, std::size_t x) {
    return static_cast<float>(7 + ((i * d + j) * h + y) * w + x);
  };
  std::vector<float> paper, channel;
  for (std::size_t y = 0; y < h; ++y) {
    for (std::size_t x = 0; x < w; ++x) {
      for (std::size_t j = 0; j < d; ++j) {
        for (std::size_t i = 0; i < f; ++i) paper.push_back(at(i, j, y, x));
      }
    }
  }
  for (std::size_t i = 0; i < f; ++i) {
    for (std::size_t y = 0; y < h; ++y) {
      for (std::size_t x = 0; x < w; ++x) {
        for (std::size_t j = 0; j < d; ++j) channel.push_back(at(i, j, y, x));
      }
    }
  }
  EXPECT_EQ(order_of(Slicing::of_tensor(tensor, "paper"), 80), paper);
  EXPECT_EQ(order_of(Slicing::of_tensor(tensor, "channel"), 80), channel);
  EXPECT_TRUE(Slicing::of_tensor(tensor, "row").contiguous());
}

TEST(Slicing, AMatrixHasTwoOrders) {
  const auto tensor = tensor_of({3, 4});
  EXPECT_EQ(Slicing::of_tensor(tensor, "row"), Slicing::of_tensor(tensor, "channel"));
  EXPECT_EQ(order_of(Slicing::of_tensor(tensor, "paper"), 12),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
}

// Every element once, from any place on, and back to where it was.
TEST(Slicing, GatherAndScatterAreInverse) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {64, 32, 3, 3}, {16, 16, 3, 3}, {10, 512}, {1, 7, 3, 3}, {5, 1, 3, 3},
      {1, 1},         {6, 1},         {7, 5, 3}, {13},         {2, 3, 2, 2, 2}};
  for (const auto& shape : shapes) {
    for (const char* name : {"paper", "channel", "row"}) {
      const auto tensor = tensor_of(shape, 3);
      Slicing slicing = Slicing::of_tensor(tensor, name);
      slicing.cut(slicing.natural_slice());
      const std::size_t bucket = tensor.elements() + 5;
      auto sorted = order_of(slicing, bucket);
      const auto order = sorted;
      std::sort(sorted.begin(), sorted.end());
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        ASSERT_EQ(sorted[i], static_cast<float>(i + 3));
      }
      std::vector<float> copy(bucket, -1);
      // In two parts, cut at an odd place.
      const std::size_t middle = order.size() / 3;
      slicing.scatter(std::span(order).first(middle), 0, copy);
      slicing.scatter(std::span(order).subspan(middle), middle, copy);
      for (std::size_t i = 0; i < bucket; ++i) {
        const bool inside = i >= 3 && i < 3 + order.size();
        ASSERT_EQ(copy[i], inside ? static_cast<float>(i) : -1.0f);
      }
      std::vector<float> part(order.size() - middle);
      slicing.gather(copy, middle, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(),
                             order.begin() + static_cast<std::ptrdiff_t>(middle)));
      EXPECT_LE(slicing.slice() * slicing.slice(), 8 * slicing.elements() + 8);
    }
  }
}

TEST(Slicing, NaturalSlices) {
  const auto slice = [](std::vector<std::int64_t> shape, const char* order) {
    return Slicing::of_tensor(tensor_of(std::move(shape)), order).natural_slice();
  };
  EXPECT_EQ(slice({128, 64, 3, 3}, "channel"), 192U);  // a row of three positions
  EXPECT_EQ(slice({128, 128, 3, 3}, "channel"), 128U);
  EXPECT_EQ(slice({128, 64, 3, 3}, "paper"), 256U);  // two depths of all filters
  EXPECT_EQ(slice({512, 3136}, "paper"), 256U);
  EXPECT_EQ(slice({509, 521}, "paper"), 256U);  // primes
  EXPECT_EQ(slice({25'600'000}, "row"), 256U);
  EXPECT_EQ(slice({200}, "row"), 40U);
  EXPECT_EQ(slice({1}, "row"), 1U);
}

TEST(Slicing, WhatFillsNoSlice) {
  Slicing slicing = Slicing::of_tensor(tensor_of({100}, 10), "row");
  slicing.cut(30);
  EXPECT_EQ(slicing.slices(), 3U);
  EXPECT_EQ(slicing.sliced(), 90U);
  slicing.cut(101);
  EXPECT_EQ(slicing.slices(), 0U);
  EXPECT_EQ(slicing.sliced(), 0U);
}

}  // namespace
}  // namespace thinreduce::slicing_test

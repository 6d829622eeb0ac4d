#include "thinreduce/methods/demo/cosines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "tests/test_world.h"

namespace thinreduce::cosines_test {
namespace {

// Returns the coefficients of the compressed tensors' chunks by the definition of the DCT-II.
std::vector<double> direct(const BucketLayout& layout, std::size_t chunk,
                           const std::vector<float>& values) {
  std::vector<double> all;
  const auto n = static_cast<double>(chunk);
  for_compressed(layout, [&](std::size_t offset, std::size_t elements) {
    for (std::size_t first = 0; first < elements; first += chunk) {
      for (std::size_t q = 0; q < chunk; ++q) {
        double sum = 0;
        for (std::size_t j = 0; j < chunk && first + j < elements; ++j) {
          const double angle =
              std::numbers::pi * (static_cast<double>(j) + 0.5) * static_cast<double>(q) / n;
          sum += static_cast<double>(values[offset + first + j]) * std::cos(angle);
        }
        all.push_back(sum * std::sqrt((q == 0 ? 1 : 2) / n));
      }
    }
  });
  return all;
}

class CosinesOf : public testing::TestWithParam<std::size_t> {};

TEST_P(CosinesOf, AreThoseOfTheDefinitionAndGiveTheValuesBack) {
  const std::size_t chunk = GetParam();
  for (const auto& layout :
       {shapeless(0), shapeless(1), shapeless(63), shapeless(1009), mixed_layout()}) {
    SCOPED_TRACE(testing::Message() << layout.elements << " elements");
    const auto values = normal_gradients(1, layout.elements, 3)[0];
    Cosines cosines(layout, chunk);
    const auto expected = direct(layout, chunk, values);
    ASSERT_EQ(cosines.size(), expected.size());
    std::vector<float> coefficients(cosines.size());
    cosines.forward(values, coefficients, {});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(coefficients[i], expected[i], 1e-5) << i;
    }
    std::vector<float> back(layout.elements);
    cosines.inverse(coefficients,
                    [&](std::size_t offset, std::span<const float> floats) {
                      for (std::size_t i = 0; i < floats.size(); ++i) back[offset + i] += floats[i];
                    },
                    {});
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], 1e-5) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, CosinesOf, testing::Values(64, 256, 1024));

}  // namespace
}  // namespace thinreduce::cosines_test

#include "thinreduce/methods/powersgd/thin_products.h"

#include <gtest/gtest.h>

#include "tests/random_data.h"
#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::thin_products_test {
namespace {

TEST(ThinProducts, EqualTheReferenceOnEveryTarget) {
  on_every_target([] {
    for (const std::size_t rows : {1u, 2u, 7u, 8u, 19u}) {
      for (const std::size_t columns : {1u, 3u, 15u, 16u, 17u, 64u, 131u, 1009u}) {
        for (const std::size_t basis : {1u, 2u, 4u, 5u, 8u, 11u}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", basis " << basis);
          // The window starts at the third row of the thin matrix.
          const std::size_t all_rows = rows + 3;
          const auto m = normal_floats(rows * columns, 1);
          const auto q = normal_floats(basis * columns, 2);
          const auto thin = normal_floats(basis * all_rows, 3);

          Guarded<float> p(std::span<const float>(thin), 1);
          auto expected_p = thin;
          times({m, columns}, q, {p.span(), all_rows, 2});
          reference::times({m, columns}, q, {expected_p, all_rows, 2});
          ASSERT_TRUE(same_bits<float>(p.span(), expected_p));
          ASSERT_TRUE(p.intact());

          Guarded<float> sum(std::span<const float>(q), 3);
          auto expected_q = q;
          add_transposed_times({m, columns}, {thin, all_rows, 2}, sum.span());
          reference::add_transposed_times({m, columns}, {thin, all_rows, 2}, expected_q);
          ASSERT_TRUE(same_bits<float>(sum.span(), expected_q));
          ASSERT_TRUE(sum.intact());

          Guarded<float> left(std::span<const float>(m), 1);
          Guarded<float> out(m.size(), 3);
          auto expected_left = m;
          std::vector<float> expected_out(m.size());
          split_product({thin, all_rows, 2}, q, {left.span(), out.span()});
          reference::split_product({thin, all_rows, 2}, q, {expected_left, expected_out});
          ASSERT_TRUE(same_bits<float>(left.span(), expected_left));
          ASSERT_TRUE(same_bits<float>(out.span(), expected_out));
          ASSERT_TRUE(left.intact());
          ASSERT_TRUE(out.intact());
        }
      }
    }
  });
}

// M = [1 2 3; 4 5 6] and thin matrices of 2 columns, computed by hand.
TEST(ThinProducts, KnownValues) {
  std::vector<float> m{1, 2, 3, 4, 5, 6};
  const std::vector<float> q{1, 0, 1, 0, 1, 0};
  std::vector<float> p(4);
  times({m, 3}, q, {p, 2, 0});
  EXPECT_EQ(p, (std::vector<float>{4, 10, 2, 5}));
  std::vector<float> back(6);
  add_transposed_times({m, 3}, {p, 2, 0}, back);
  EXPECT_EQ(back, (std::vector<float>{44, 58, 72, 22, 29, 36}));
  std::vector<float> out(6);
  split_product({p, 2, 0}, q, {m, out});
  EXPECT_EQ(out, (std::vector<float>{4, 2, 4, 10, 5, 10}));
  EXPECT_EQ(m, (std::vector<float>{-3, 0, -1, -6, 0, -4}));
}

TEST(ThinProducts, ShapesThatDoNotFitAreABug) {
  std::vector<float> m(6), q(3), p(2), out(6);
  EXPECT_THROW(times({m, 4}, q, {p, 2, 0}), BrokenInvariant);
  EXPECT_THROW(times({m, 3}, q, {p, 2, 1}), BrokenInvariant);
  EXPECT_THROW(add_transposed_times({m, 3}, {p, 1, 0}, q), BrokenInvariant);
  EXPECT_THROW(split_product({p, 2, 0}, q, {m, std::span(out).first(3)}), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::thin_products_test

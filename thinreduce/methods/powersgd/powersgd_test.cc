#include "thinreduce/methods/powersgd/powersgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>

#include "tests/ranks.h"
#include "tests/test_world.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/ring.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/powersgd/orthonormal.h"
#include "thinreduce/methods/powersgd/views.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce::powersgd_test {
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double norm_of_difference(const std::vector<float>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// The paper's algorithm in double precision with Eigen's Householder QR.
class EigenPowerSgd {
 public:
  EigenPowerSgd(int world, const BucketLayout& layout, std::size_t basis)
      : views_(view_as_matrices(layout, basis)),
        errors_(static_cast<std::size_t>(world), std::vector<double>(layout.elements)) {
    std::size_t size = 0;
    for (const auto& view : views_.matrices) size += view.columns * basis;
    std::vector<float> start(size);
    random_columns(start, mix(mix(0)));  // as the method derives it from seed 0 and bucket 0
    std::size_t at = 0;
    for (const auto& view : views_.matrices) {
      const Eigen::Map<const Eigen::MatrixXf> q(&start[at], static_cast<long>(view.columns),
                                                static_cast<long>(basis));
      q_.emplace_back(q.cast<double>());
      at += view.columns * basis;
    }
  }

  std::vector<double> step(const PerRank& gradients) {
    const auto world = static_cast<double>(gradients.size());
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      for (std::size_t i = 0; i < errors_[n].size(); ++i) errors_[n][i] += gradients[n][i];
    }
    std::vector<double> mean(errors_[0].size());
    for (std::size_t which = 0; which < q_.size(); ++which) {
      const auto& view = views_.matrices[which];
      const auto m = [&](std::size_t n) {
        using Map =
            Eigen::Map<Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
        return Map(&errors_[n][view.offset], static_cast<long>(view.rows),
                   static_cast<long>(view.columns));
      };
      Matrix p = Matrix::Zero(static_cast<long>(view.rows), q_[which].cols());
      for (std::size_t n = 0; n < errors_.size(); ++n) p += m(n) * q_[which] / world;
      p = Matrix(Eigen::HouseholderQR<Matrix>(p).householderQ() *
                 Matrix::Identity(p.rows(), p.cols()));
      Matrix q = Matrix::Zero(q_[which].rows(), q_[which].cols());
      for (std::size_t n = 0; n < errors_.size(); ++n) q += m(n).transpose() * p / world;
      const Matrix out = p * q.transpose();
      for (std::size_t i = 0; i < view.rows; ++i) {
        for (std::size_t j = 0; j < view.columns; ++j) {
          mean[view.offset + i * view.columns + j] =
              out(static_cast<long>(i), static_cast<long>(j));
        }
      }
      for (std::size_t n = 0; n < errors_.size(); ++n) m(n) -= out;
      q_[which] = q;
    }
    for (const auto& view : views_.plain) {
      for (std::size_t i = view.offset; i < view.offset + view.elements(); ++i) {
        for (auto& error : errors_) {
          mean[i] += error[i] / world;
          error[i] = 0;
        }
      }
    }
    return mean;
  }

  [[nodiscard]] const std::vector<double>& error(std::size_t rank) const { return errors_[rank]; }

 private:
  MatrixViews views_;
  std::vector<Matrix> q_;
  std::vector<std::vector<double>> errors_;
};

// The span, hence P P' M, does not depend on the orthonormal basis; float32 and double differ by
// rounding only.
TEST(PowerSgd, EqualsTheReferenceInEigen) {
  const std::vector<BucketLayout> layouts{mixed_layout(), {0, 4099, {}}, layout_of({{64, 300}})};
  for (const int world : {1, 3, 4}) {
    for (const std::size_t basis : {1u, 2u, 4u, 7u}) {
      for (const auto& layout : layouts) {
        SCOPED_TRACE(testing::Message()
                     << world << " ranks, basis " << basis << ", " << layout.elements);
        TestWorld ranks(world, "powersgd:basis=" + std::to_string(basis), layout);
        EigenPowerSgd eigen(world, layout, basis);
        for (unsigned step = 0; step < 4; ++step) {
          const auto gradients = normal_gradients(world, layout.elements, step);
          const auto expected = eigen.step(gradients);
          const auto mean = ranks.mean(gradients);
          EXPECT_LT(norm_of_difference(mean, expected), 2e-5 * norm(expected));
          for (std::size_t n = 0; n < gradients.size(); ++n) {
            EXPECT_LT(norm_of_difference(ranks.residual(n), eigen.error(n)),
                      2e-5 * norm(eigen.error(n)));
          }
        }
      }
    }
  }
}

// With basis >= min(rows, columns) the thin matrices would be larger than the matrix: it is sent
// uncompressed, and the mean is the ring's.
TEST(PowerSgd, AFullBasisIsExact) {
  for (const int world : kWorlds) {
    for (const auto& layout :
         {layout_of({{4, 100}, {100, 3}, {2, 2}, {7}}), BucketLayout{0, 20, {}}}) {
      TestWorld ranks(world, "powersgd:basis=4", layout);
      TestWorld plain(world, "fp32", layout);
      for (unsigned step = 0; step < 2; ++step) {
        const auto gradients = normal_gradients(world, layout.elements, step);
        EXPECT_EQ(ranks.mean(gradients), plain.mean(gradients));
        EXPECT_EQ(ranks.residual(0), std::vector<float>(layout.elements));
      }
    }
  }
}

// The columns of the sum of the gradients span 3 directions: one step finds all of them.
TEST(PowerSgd, MatricesOfFewDirectionsAreExact) {
  constexpr std::size_t kRows = 61;
  constexpr std::size_t kColumns = 97;
  for (const int world : {1, 2, 4}) {
    const auto thin = normal_gradients(world, 3 * (kRows + kColumns), 9);
    // The same column space on all ranks, so that the mean has 3 directions too.
    PerRank gradients;
    for (const auto& own : thin) {
      auto& gradient = gradients.emplace_back(kRows * kColumns);
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::size_t j = 0; j < kColumns; ++j) {
          for (std::size_t k = 0; k < 3; ++k) {
            gradient[i * kColumns + j] +=
                thin[0][k * kRows + i] * own[3 * kRows + k * kColumns + j];
          }
        }
      }
    }
    TestWorld ranks(world, "powersgd:basis=3", layout_of({{kRows, kColumns}}));
    auto expected = exact_sum(gradients);
    for (auto& value : expected) value /= world;
    EXPECT_LT(norm_of_difference(ranks.mean(gradients), expected), 1e-5 * norm(expected));
  }
}

// A constant matrix is eventually sent completely. The warm start makes that fast: with 2 columns
// the error after 10 power iterations is far below that of a fresh start.
TEST(PowerSgd, WarmStartFindsTheLargestDirections) {
  constexpr long kRows = 40;
  constexpr long kColumns = 60;
  const Matrix left = Matrix::Random(kRows, kRows);
  const Matrix right = Matrix::Random(kColumns, kRows);
  const Matrix u = Eigen::HouseholderQR<Matrix>(left).householderQ();
  const Matrix v = Matrix(Eigen::HouseholderQR<Matrix>(right).householderQ()).leftCols(kRows);
  // Two large singular values, the rest small.
  Eigen::VectorXd values = Eigen::VectorXd::Constant(kRows, 0.01);
  values[0] = 2;
  values[1] = 1;
  const RowMajor m = (u * values.asDiagonal() * v.transpose()).cast<float>();
  const std::vector<float> gradient(m.data(), m.data() + m.size());
  TestWorld ranks(2, "powersgd:basis=2", layout_of({{kRows, kColumns}}));
  std::vector<float> mean;
  std::vector<double> expected(gradient.size());
  for (int step = 0; step < 5; ++step) {
    mean = ranks.mean({gradient, gradient});
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradient[i];
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= mean[i];
  }
  // The residual of five steps lies in the small directions: 5 * 0.01 * sqrt(38).
  EXPECT_LT(norm(expected), 1.1 * 5 * 0.01 * std::sqrt(38.0));
}

// All tensors of the bucket share two sums.
TEST(PowerSgd, TwoSumsPerBucket) {
  const auto layout = layout_of({{128, 600}, {200, 64, 3, 3}, {50, 60}, {300, 40}, {17}});
  constexpr std::size_t kP = 4 * (128 + 200 + 50 + 300) + 17;
  constexpr std::size_t kQ = 4 * (600 + 576 + 60 + 40);
  for (const int world : {2, 4, 8}) {
    TestWorld ranks(world, "powersgd:basis=4", layout);
    ranks.link = kRingLink;
    (void)ranks.mean(normal_gradients(world, layout.elements, 1));
    for (std::size_t n = 0; n < static_cast<std::size_t>(world); ++n) {
      EXPECT_EQ(ranks.payload_bytes[n], (kP + kQ) * sizeof(float));
      const auto sent = ranks.transport(n).total_traffic();
      EXPECT_EQ(sent.bytes_sent,
                ring_bytes_sent(static_cast<int>(n), world, kP, sizeof(float)) +
                    ring_bytes_sent(static_cast<int>(n), world, kQ, sizeof(float)));
      EXPECT_EQ(sent.messages_sent, static_cast<std::size_t>(4 * (world - 1)));
    }
  }
}

// Q becomes zero with the gradient, and must not stay so.
TEST(PowerSgd, RecoversFromZeros) {
  TestWorld ranks(2, "powersgd:basis=2", layout_of({{30, 40}}));
  const PerRank nothing(2, std::vector<float>(1200));
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(ranks.mean(nothing), std::vector<float>(1200));
  }
  std::vector<float> one(1200);
  for (std::size_t i = 0; i < 30; ++i) {
    for (std::size_t j = 0; j < 40; ++j) one[i * 40 + j] = static_cast<float>(i) - 7;
  }
  // The first step projects on random directions, the next ones on the directions found.
  const auto first = ranks.mean({one, one});
  EXPECT_NE(first, std::vector<float>(1200));
  const auto second = ranks.mean(nothing);
  double difference = 0;
  for (std::size_t i = 0; i < 1200; ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(first[i]) + second[i] - one[i]));
  }
  EXPECT_LT(difference, 1e-3);
}

TEST(PowerSgd, EveryBucketSize) {
  for (const int world : {1, 2, 7}) {
    for (const std::size_t elements : {0u, 1u, 2u, 5u, 63u, 64u, 65u, 82u, 1009u}) {
      TestWorld ranks(world, "powersgd:basis=2", elements);
      const auto gradients = normal_gradients(world, elements, 2);
      const auto mean = ranks.mean(gradients);
      const auto sum = exact_sum(gradients);
      for (std::size_t i = 0; i < elements; ++i) {
        double all = static_cast<double>(mean[i]) * world;
        for (std::size_t n = 0; n < gradients.size(); ++n) all += ranks.residual(n)[i];
        ASSERT_NEAR(all, sum[i], 1e-4);
      }
    }
  }
}

TEST(PowerSgd, ViewsOfABucket) {
  auto layout = mixed_layout();
  layout.tensors.erase(layout.tensors.begin() + 2);
  const auto views = view_as_matrices(layout, 2);
  ASSERT_EQ(views.matrices.size(), 2u);
  EXPECT_EQ(views.matrices[0].rows, 16u);
  EXPECT_EQ(views.matrices[0].columns, 72u);
  EXPECT_EQ(views.matrices[1].rows, 24u);
  EXPECT_EQ(views.matrices[1].columns, 400u);
  ASSERT_EQ(views.plain.size(), 2u);
  EXPECT_EQ(views.plain[0].elements(), 16u);
  EXPECT_EQ(views.plain[1].elements(), 15u);
  const auto whole = view_as_matrices({0, 1009, {}}, 4);
  ASSERT_EQ(whole.matrices.size(), 1u);
  EXPECT_EQ(whole.matrices[0].rows, 31u);
  EXPECT_EQ(whole.matrices[0].columns, 32u);
  ASSERT_EQ(whole.plain.size(), 1u);
  EXPECT_EQ(whole.plain[0].elements(), 17u);
  EXPECT_EQ(whole.plain[0].offset, 992u);
}

}  // namespace
}  // namespace thinreduce::powersgd_test

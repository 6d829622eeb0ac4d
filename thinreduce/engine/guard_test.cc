// A rank whose gradient is far larger than those of the others.
#include "thinreduce/engine/guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/engine/session.h"

namespace thinreduce::guard_test {
namespace {

using Outliers = std::map<int, double>;

TEST(Guard, NamesRanksFarAboveTheMedian) {
  const auto found = [](std::vector<float> norms) { return find_outliers(norms, 10); };
  EXPECT_EQ(found({}), Outliers{});
  EXPECT_EQ(found({5}), Outliers{});
  EXPECT_EQ(found({1, 10}), Outliers{});
  EXPECT_EQ(found({1, 11}), (Outliers{{1, 11}}));
  EXPECT_EQ(found({22, 2, 1}), (Outliers{{0, 11}}));
  EXPECT_EQ(found({1, 100, 1, 50, 1}), (Outliers{{1, 100}, {3, 50}}));
  EXPECT_EQ(found({0, 0, 5}), Outliers{});  // most have no gradient at all
  EXPECT_EQ(found({0, 5, 5}), Outliers{});
}

// The norm is a sum in a fixed order, whatever the number of threads.
TEST(Guard, TheNormDoesNotDependOnThreads) {
  auto transports = connect_threads(1);
  for (const std::size_t size : {0U, 1U, 7U, 1009U, 300'007U}) {
    const auto values = gradient(size, 0, 1);
    double exact = 0;
    for (const float value : values)
      exact += static_cast<double>(value) * static_cast<double>(value);
    const float one = norm(Workers(), values);
    EXPECT_NEAR(one, std::sqrt(exact), 1e-6 * std::sqrt(exact) + 1e-30);
    WorkerPool pool(3);
    EXPECT_EQ(norm(Workers(pool, *transports[0]), values), one);
  }
  const std::vector<float> large(4, std::numeric_limits<float>::max());
  EXPECT_EQ(norm(Workers(), large), std::numeric_limits<float>::max());
}

// Rank 1 of 3 has a gradient that is 100 times too large, in the second of three steps.
struct Guarded {
  std::vector<float> values;
  Report report;
  std::string refused;
};
Guarded run_guarded(std::unique_ptr<Transport> transport, Guard guard, const std::string& spec) {
  Session session(std::move(transport), {.spec = spec, .guard = guard, .guard_factor = 5});
  Guarded result;
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto values = gradient(5000, session.rank(), step);
    if (step == 1 && session.rank() == 1) {
      for (float& value : values) value *= 100;
    }
    if (step == 1 && guard == Guard::refuse) {
      result.refused = thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, values); });
      continue;
    }
    const Report report = session.reduce(0, values);
    EXPECT_EQ(report.outliers.empty(), guard == Guard::off || step != 1);
    if (step == 1) result.report = report;
    if (step == 1) result.values = values;
  }
  return result;
}

TEST(Guard, ReportsClipsOrRefuses) {
  for (const Guard guard : {Guard::off, Guard::report, Guard::clip, Guard::refuse}) {
    run_ranks(3, [&](std::unique_ptr<Transport> transport) {
      const auto result = run_guarded(std::move(transport), guard, "fp32");
      if (guard == Guard::refuse) {
        EXPECT_NE(result.refused.find("step 1: the norms of the gradients differ too much: rank 1"),
                  std::string::npos)
            << result.refused;
        return;
      }
      if (guard != Guard::off) {
        ASSERT_EQ(result.report.outliers.size(), 1U);
        EXPECT_NEAR(result.report.outliers.at(1), 100, 5);
      }
      // Clipped, rank 1 counts as 5 times the median; the norms of the others hardly differ.
      const float scale = guard == Guard::clip ? 5 : 100;
      const auto first = gradient(5000, 0, 1);
      const auto second = gradient(5000, 1, 1);
      const auto third = gradient(5000, 2, 1);
      for (std::size_t i = 0; i < first.size(); ++i) {
        ASSERT_NEAR(result.values[i], (first[i] + scale * second[i] + third[i]) / 3, 0.02 * scale);
      }
    });
  }
}

// A refused step leaves no trace in the residuals.
TEST(Guard, ARefusedStepChangesNothing) {
  run_ranks(3, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk", .guard = Guard::refuse});
    auto first = gradient(5000, session.rank(), 0);
    session.reduce(0, first);
    const auto before = session.save_bytes();
    auto values = gradient(5000, session.rank(), 1);
    if (session.rank() == 2) std::ranges::fill(values, 1e6F);
    thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, values); });
    EXPECT_EQ(session.save_bytes(), before);
  });
}

// Large uncompressed buckets look for NaN during the sum, but not with a guard.
TEST(Guard, NanIsNoOutlier) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.guard = Guard::report});
    std::vector<float> values(300'007, 1.0F);
    if (session.rank() == 1) values[5] = std::numeric_limits<float>::infinity();
    const auto before = values;
    const auto text = thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1 is NaN or Inf at index 5"), std::string::npos) << text;
    EXPECT_EQ(values, before);
  });
}

TEST(Guard, RanksMustHaveTheSame) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    const Guard guard = transport->rank() == 0 ? Guard::clip : Guard::off;
    Session session(std::move(transport), {.guard = guard});
  });
  for (const auto& one : thrown) error_text(one, ErrorCode::mismatch);
  for (const double factor : {0.5, 1.0, -1.0, std::nan(""), HUGE_VAL}) {
    thrown_text(ErrorCode::bad_input, [&] {
      Session session(std::move(connect_threads(1)[0]),
                      {.guard = Guard::report, .guard_factor = factor});
    });
  }
  EXPECT_EQ(guard_of("clip"), Guard::clip);
  thrown_text(ErrorCode::bad_input, [] { (void)guard_of("on"); });
}

}  // namespace
}  // namespace thinreduce::guard_test

// Laws of every method: the same bits on all ranks; nothing is lost where a residual is kept,
// neither in many steps nor when the exchange fails; a sum that overflows is an error on all ranks.
//
// The first part takes its specs from methods(), so a new method is under it by being registered.
// The second part adds specs whose numbers take another way through the code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/method_laws.h"
#include "tests/test_world.h"

namespace thinreduce::laws_test {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

class EveryMethod : public testing::TestWithParam<Law> {};

TEST_P(EveryMethod, LeavesTheSameBitsOnAllRanks) {
  for (const int world : GetParam().worlds) {
    for (const auto& layout :
         {shapeless(0), shapeless(1), shapeless(63), shapeless(1009), mixed_layout()}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << layout.elements << " elements");
      TestWorld ranks(world, GetParam().spec, layout);
      for (unsigned step = 0; step < steps_of(GetParam().spec, 3); ++step) {
        const auto mean = ranks.mean(law_gradients(ranks, GetParam(), world, step));
        ASSERT_TRUE(std::ranges::all_of(mean, [](float value) { return std::isfinite(value); }));
      }
    }
  }
}

// Nothing is owed, so a step of zeros must give zeros.
TEST_P(EveryMethod, ZerosGiveZeros) {
  for (const int world : GetParam().worlds) {
    TestWorld ranks(world, GetParam().spec, mixed_layout());
    const PerRank zeros(static_cast<std::size_t>(world), std::vector<float>(ranks.elements()));
    if (reads_second_moments(GetParam().spec)) ranks.second_moments = zeros;
    for (unsigned step = 0; step < steps_of(GetParam().spec, 2); ++step) {
      const auto mean = ranks.mean(zeros);
      ASSERT_TRUE(std::ranges::all_of(mean, [](float value) { return value == 0; }));
    }
  }
}

// Finite gradients whose sum is no float: every rank gets an error, or a mean of finite numbers.
// Only plain floats add up to Inf, as they do without this library.
TEST_P(EveryMethod, NeverHandsOutAnOverflow) {
  if (GetParam().spec == "fp32") return;
  for (const float sign : {1.0F, -1.0F}) {
    for (const unsigned before : {0U, steps_of(GetParam().spec, 1)}) {
      SCOPED_TRACE(testing::Message() << "after " << before << " steps, sign " << sign);
      TestWorld ranks(2, GetParam().spec, mixed_layout());
      for (unsigned step = 0; step < before; ++step) {
        (void)ranks.mean(law_gradients(ranks, GetParam(), 2, step));
      }
      if (reads_second_moments(GetParam().spec)) {
        ranks.second_moments = PerRank(2, std::vector<float>(ranks.elements(), 0.1F));
      }
      const auto after = ranks.step(PerRank(2, std::vector<float>(ranks.elements(), sign * kMax)));
      ASSERT_EQ(ranks.thrown[0] == nullptr, ranks.thrown[1] == nullptr);
      if (ranks.thrown[0] == nullptr) {
        EXPECT_TRUE(std::ranges::all_of(after[0], [](float v) { return std::isfinite(v); }));
        EXPECT_EQ(after[0], after[1]);
        continue;
      }
      // A gradient that is nothing but kMax is kept as far as floats go.
      if (!ranks.saved(0).has_summed) continue;
      for (const float kept : ranks.kept(0)) ASSERT_GE(sign * kept, 0.99F * kMax);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, EveryMethod, testing::ValuesIn(laws()), law_name);

class KeepingMethod : public testing::TestWithParam<Law> {};

// Means times N, and all residuals, are the sum of all gradients; a residual that decays loses that
// part and no more. Sums of a few dozen normal numbers are rounded by less than 1e-4 each time.
TEST_P(KeepingMethod, LosesNothing) {
  const double decay = decay_of(GetParam().spec);
  for (const int world : GetParam().worlds) {
    for (const auto& layout : {shapeless(1009), mixed_layout()}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << layout.elements << " elements");
      TestWorld ranks(world, GetParam().spec, layout);
      std::vector<double> owed(layout.elements);
      // One world goes on for long: errors that grow slowly show only then.
      const unsigned steps = steps_of(GetParam().spec, world == 3 ? 100 : 8);
      for (unsigned step = 0; step < steps; ++step) {
        const auto gradients = law_gradients(ranks, GetParam(), world, step);
        const auto sum = exact_sum(gradients);
        const auto mean = ranks.mean(gradients);
        for (std::size_t i = 0; i < owed.size(); ++i) {
          owed[i] = decay * (owed[i] + sum[i] - static_cast<double>(mean[i]) * world);
        }
      }
      std::vector<double> held(layout.elements);
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
        const auto residual = ranks.kept(rank);
        for (std::size_t i = 0; i < held.size(); ++i) held[i] += residual[i];
      }
      for (std::size_t i = 0; i < held.size(); ++i) ASSERT_NEAR(held[i], owed[i], 2e-3) << i;
    }
  }
}

// Rank 1 leaves: rank 0 keeps what it held back and its whole gradient, in the uncompressed steps
// at the start as well as later.
TEST_P(KeepingMethod, KeepsTheGradientOfAFailedExchange) {
  for (const auto& layout : {shapeless(1009), mixed_layout()}) {
    for (const unsigned before : {0U, steps_of(GetParam().spec, 0), steps_of(GetParam().spec, 3)}) {
      SCOPED_TRACE(testing::Message() << layout.elements << " elements, step " << before);
      TestWorld ranks(2, GetParam().spec, layout);
      for (unsigned step = 0; step < before; ++step) {
        (void)ranks.mean(law_gradients(ranks, GetParam(), 2, step));
      }
      auto expected = ranks.kept(0);
      const auto fingerprint = ranks.method(0).fingerprint();
      const auto gradients = law_gradients(ranks, GetParam(), 2, before);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradients[0][i];
      ranks.transport(1).abandon("this rank leaves");
      (void)ranks.step(gradients);
      ASSERT_NE(ranks.thrown[0], nullptr);
      EXPECT_EQ(ranks.method(0).fingerprint(), fingerprint);
      const auto kept = ranks.kept(0);
      for (std::size_t i = 0; i < kept.size(); ++i) ASSERT_NEAR(kept[i], expected[i], 1e-4) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, KeepingMethod, testing::ValuesIn(keeping_laws()), law_name);

// A spec as the name of a test; the index keeps names apart.
template <typename Case>
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param.spec);
}

struct Conserving {
  const char* spec;
  std::vector<int> worlds;
  BucketLayout layout;
  unsigned steps;
  // For the roundings of sums of normal numbers; 0 stands for whole numbers and worlds that are
  // powers of two, where nothing is rounded.
  double tolerance;
};

class Conservation : public testing::TestWithParam<Conserving> {
 protected:
  static PerRank gradients(int world, unsigned step) {
    const Conserving& law = GetParam();
    return law.tolerance == 0 ? whole_gradients(world, law.layout.elements, step)
                              : normal_gradients(world, law.layout.elements, step);
  }
  static PerRank moments(int world, unsigned step) {
    auto moments = random_moments(world, GetParam().layout.elements, step);
    for (auto& moment : moments) {
      for (auto& value : moment) value *= GetParam().tolerance == 0 ? 2500 : 1;
    }
    return moments;
  }
};

// Means times N plus residuals are the sum of all gradients, whatever was not sent.
TEST_P(Conservation, NothingIsLost) {
  const Conserving& law = GetParam();
  for (const int world : law.worlds) {
    SCOPED_TRACE(testing::Message() << world << " ranks");
    TestWorld ranks(world, law.spec, law.layout);
    std::vector<double> given(law.layout.elements), applied(law.layout.elements);
    for (unsigned step = 0; step < law.steps; ++step) {
      const auto each = gradients(world, step);
      if (reads_second_moments(law.spec)) ranks.second_moments = moments(world, step);
      const auto sum = exact_sum(each);
      const auto mean = ranks.mean(each);
      for (std::size_t i = 0; i < given.size(); ++i) {
        given[i] += sum[i];
        applied[i] += static_cast<double>(mean[i]) * world;
      }
    }
    EXPECT_NE(applied, std::vector<double>(applied.size()));
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
      const auto held = ranks.residual(rank);
      ASSERT_EQ(held.size(), applied.size());
      for (std::size_t i = 0; i < applied.size(); ++i) applied[i] += held[i];
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(applied[i], given[i], law.tolerance) << i;
    }
  }
}

std::vector<Conserving> conserving() {
  std::vector<Conserving> laws{
      {"topk:density=0.05", {1, 2, 4}, shapeless(1009), 12, 0},
      {"topk:density=0.05,collective=owner", {1, 2, 4}, shapeless(1009), 12, 0},
      {"topk:density=0.05,chunk=100", {1, 2, 4}, shapeless(1009), 12, 0},
      {"topk:density=0.05,chunk=100,values=2bit", {1, 2, 4}, shapeless(1009), 12, 1e-5},
      {"powersgd:basis=2", {1, 2, 3, 4}, mixed_layout(), 10, 5e-5},
  };
  for (const char* spec : {"sketch:density=0.05,min_values=1,momentum=0",
                           "sketch:density=0.05,min_values=1,momentum=0,collective=root",
                           "sketch:density=0.05,min_values=1,momentum=0,cells=f32"}) {
    laws.push_back({spec, {1, 2, 4}, shapeless(1009), 12, 0});
  }
  for (const char* spec :
       {"dqsg:levels=3,feedback=on", "dqsg:levels=3,feedback=on,clip=1.5",
        "dqsg:levels=7,feedback=on,collective=gather",
        "dqsg:levels=3,feedback=on,clip=2,collective=gather",
        "dqsg:levels=3,feedback=on,clip=2,collective=root",
        "dqsg:levels=7,feedback=on,collective=owner,answer_levels=15",
        "dqsg:levels=3,feedback=on,clip=2,collective=owner", "qsgd:bits=3,feedback=on",
        "qsgd:bits=3,feedback=on,collective=owner", "terngrad:feedback=on",
        "terngrad:feedback=on,collective=owner", "ndqsg:feedback=on,failures=1"}) {
    laws.push_back({spec, {1, 4}, shapeless(5009), 6, 2e-4});
  }
  for (const char* spec : {"fft", "fft:theta=0.99,bits=4", "fft:transform=dct,block=64",
                           "fft:theta=0.5,block=1024,mantissa=0"}) {
    laws.push_back({spec, {1, 2, 3, 4, 7}, shapeless(4099), 4, 5e-5});
  }
  for (const char* spec :
       {"demo:beta=1", "demo:beta=1,values=f32,chunk=64", "demo:beta=1,density=0.01,chunk=4096"}) {
    laws.push_back({spec, {1, 2, 3, 4, 7}, shapeless(4099), 4, 5e-5});
  }
  for (const char* spec : {"variance:values=f32", "variance", "variance:tau=4"}) {
    laws.push_back({spec, {2}, shapeless(211), 1000, 0});
  }
  return laws;
}
INSTANTIATE_TEST_SUITE_P(Laws, Conservation, testing::ValuesIn(conserving()), name_of<Conserving>);

struct Failing {
  const char* spec;
};
class FailedExchange : public testing::TestWithParam<Failing> {};

// Rank 1 is gone: rank 0 keeps its whole gradient for later, and what all ranks must have alike.
TEST_P(FailedExchange, KeepsTheGradient) {
  for (const auto& layout : {shapeless(1000), mixed_layout()}) {
    TestWorld ranks(2, GetParam().spec, layout);
    const auto gradients = normal_gradients(2, layout.elements, 5);
    if (reads_second_moments(GetParam().spec)) {
      ranks.second_moments = random_moments(2, layout.elements, 5);
    }
    const auto fingerprint = ranks.method(0).fingerprint();
    ranks.transport(1).abandon("this rank leaves");
    (void)ranks.step(gradients);
    ASSERT_NE(ranks.thrown[0], nullptr);
    EXPECT_EQ(ranks.residual(0), gradients[0]);
    EXPECT_EQ(ranks.method(0).fingerprint(), fingerprint);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Laws, FailedExchange,
    testing::Values(
        Failing{"topk:density=0.1"}, Failing{"topk:density=0.1,collective=owner"},
        Failing{"topk:density=0.1,chunk=100"}, Failing{"topk:density=0.1,values=2bit"},
        Failing{"sketch:momentum=0,k=20"}, Failing{"sketch:momentum=0,k=20,collective=root"},
        Failing{"sketch:momentum=0.9"}, Failing{"dqsg:feedback=on"}, Failing{"dqsg:clip=1"},
        Failing{"dqsg:feedback=on,collective=gather"}, Failing{"dqsg:feedback=on,collective=root"},
        Failing{"dqsg:feedback=on,collective=owner"}, Failing{"dqsg:clip=1,collective=owner"},
        Failing{"ndqsg:feedback=on"}, Failing{"qsgd:feedback=on"}, Failing{"terngrad:feedback=on"},
        Failing{"fft"}, Failing{"variance:zeta=0.5"}, Failing{"powersgd"}, Failing{"demo"},
        Failing{"demo:values=f32"}, Failing{"demo:sign=on"}),
    name_of<Failing>);

// Part of the error of every rank that has looked at the sum itself. A payload is refused by the
// first rank that decodes it; the other may hear of that before it comes so far.
constexpr std::string_view kSum = "after the sum over 2 ranks";

struct Overflowing {
  const char* spec;
  std::size_t elements;
  std::string_view message;
  unsigned good_steps = 0;    // until residual and gradient together are too large
  std::size_t huge_from = 0;  // the first rank whose values are huge
};
class Overflow : public testing::TestWithParam<Overflowing> {};

// All ranks get the same kind of error and none a mean; a gradient that was finite by itself is
// kept.
TEST_P(Overflow, IsAnErrorOnAllRanks) {
  const Overflowing& law = GetParam();
  TestWorld ranks(2, law.spec, law.elements);
  PerRank gradients(2, std::vector<float>(law.elements, 1.0F));
  for (std::size_t rank = law.huge_from; rank < 2; ++rank) {
    gradients[rank].assign(law.elements, kMax);
  }
  if (reads_second_moments(law.spec)) {
    ranks.second_moments = PerRank(2, std::vector<float>(law.elements, 0.1F));
  }
  for (unsigned step = 0; step < law.good_steps; ++step) (void)ranks.mean(gradients);
  (void)ranks.step(gradients);
  int refused = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_NE(ranks.thrown[rank], nullptr);
    try {
      std::rethrow_exception(ranks.thrown[rank]);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(law.message)));
      if (error.code() != ErrorCode::bad_frame) continue;
      ++refused;
      EXPECT_TRUE(error.is_overflow()) << error.what();
    }
    if (law.good_steps == 0 && ranks.saved(rank).has_summed) {
      EXPECT_EQ(ranks.residual(rank), gradients[rank]);
    }
  }
  EXPECT_GE(refused, law.message == kSum ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Laws, Overflow,
    testing::Values(
        Overflowing{"topk:density=0.1", 100, "top-k payload of rank 1"},
        Overflowing{"topk:density=0.1", 100, "top-k payload of rank 1", 1, 1},
        Overflowing{"topk:density=0.1,collective=owner", 100, "a gradient overflowed"},
        Overflowing{"topk:density=0.1,values=2bit", 100, "top-k payload of rank 1"},
        Overflowing{"bf16", 100, kSum},
        Overflowing{"sketch:momentum=0,k=10,cells=f32,nominees=0", 500, kSum},
        Overflowing{"sketch:momentum=0,k=10,cells=f16,nominees=0", 500, "sent invalid cells"},
        Overflowing{"sketch:momentum=0,k=10", 500, "exceeds float32 when it is rounded"},
        Overflowing{"sketch:momentum=0,k=10,values=f32,candidates=1000", 500, kSum},
        Overflowing{"sketch:momentum=0,k=10,candidates=1000", 500,
                    "exceeds float32 when it is rounded"},
        Overflowing{"dqsg:clip=0.01,block=100", 100, "", 1},
        Overflowing{"dqsg:clip=0.01,block=100,collective=gather", 100, "", 1},
        Overflowing{"dqsg:clip=0.01,block=100,collective=owner", 1100, "", 1},
        Overflowing{"fft", 300, "FFT payload of rank 1", 0, 1},
        Overflowing{"variance", 100, "rank 1", 0, 1},
        Overflowing{"variance:values=f32", 100, "rank 1", 0, 1},
        Overflowing{"variance:tau=1", 100, "rank 1", 0, 1}, Overflowing{"powersgd", 1000, kSum},
        Overflowing{"demo", 1100, "top-k payload of rank 1", 0, 1},
        Overflowing{"demo:values=f32", 1100, "top-k payload of rank 1", 0, 1}),
    name_of<Overflowing>);

}  // namespace
}  // namespace thinreduce::laws_test

// Laws of every method: the same bits on all ranks; nothing is lost where a residual is kept,
// neither in many steps nor when the exchange fails; a sum that overflows is an error on all ranks.
//
// Specs come from methods(), so a new method is under these laws by being registered. The second
// part adds specs whose numbers take another way through the code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
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
    for (const auto& layout : law_layouts()) {
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

// All ranks refused the step, and kept a gradient that is nothing but `huge` as far as floats go;
// or all have the same mean of finite numbers.
void expect_no_overflow(TestWorld& ranks, const PerRank& after, float huge) {
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    ASSERT_EQ(ranks.thrown[rank] == nullptr, ranks.thrown[0] == nullptr);
    if (ranks.thrown[rank] == nullptr) {
      EXPECT_TRUE(std::ranges::all_of(after[rank], [](float v) { return std::isfinite(v); }));
      EXPECT_EQ(after[rank], after[0]);
    } else if (ranks.saved(rank).has_summed) {
      for (const float kept : ranks.kept(rank)) ASSERT_GE(kept / huge, 0.99F);
    }
  }
}

// Finite gradients whose sum is no float: every rank gets an error, or a mean of finite numbers.
// Only plain floats add up to Inf, as they do without this library.
TEST_P(EveryMethod, NeverHandsOutAnOverflow) {
  const std::string& spec = GetParam().spec;
  if (!Spec::parse(spec).info->compresses) return;
  for (const int world : {1, 2, 3}) {
    const auto all = static_cast<std::size_t>(world);
    for (const float huge : {kMax, -kMax}) {
      for (const unsigned before : {0U, steps_of(spec, 1)}) {
        SCOPED_TRACE(testing::Message()
                     << world << " ranks, after " << before << " steps, " << huge);
        TestWorld ranks(world, spec, mixed_layout());
        for (unsigned step = 0; step < before; ++step) {
          (void)ranks.mean(law_gradients(ranks, GetParam(), world, step));
        }
        if (reads_second_moments(spec)) {
          ranks.second_moments = PerRank(all, std::vector<float>(ranks.elements(), 0.1F));
        }
        const auto after = ranks.step(PerRank(all, std::vector<float>(ranks.elements(), huge)));
        expect_no_overflow(ranks, after, huge);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, EveryMethod, testing::ValuesIn(laws()), law_name);

class KeepingMethod : public testing::TestWithParam<Law> {};

// Means times N, and all residuals, are the sum of all gradients; a residual that decays loses that
// part and no more. Sums of a few dozen normal numbers are rounded by less than 1e-4 each time.
TEST_P(KeepingMethod, LosesNothing) {
  const double decay = losses_of(GetParam().spec).decay;
  for (const int world : GetParam().worlds) {
    for (const auto& layout : law_layouts()) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << layout.elements << " elements");
      TestWorld ranks(world, GetParam().spec, layout);
      std::vector<double> owed(layout.elements);
      // One world goes on for long: errors that grow slowly show only then.
      const bool is_long = world == 3 && layout.elements >= 1009;
      const unsigned steps = steps_of(GetParam().spec, is_long ? 100 : 8);
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

class FailedExchange : public testing::TestWithParam<Law> {
 protected:
  // The last rank leaves in a step: all others refuse it. They keep what they had held back, their
  // whole gradient, and what all ranks must have alike.
  static void leave(const BucketLayout& layout, int world, unsigned step) {
    const Law& law = GetParam();
    TestWorld ranks(world, law.spec, layout);
    for (unsigned s = 0; s < step; ++s) (void)ranks.mean(law_gradients(ranks, law, world, s));
    const auto gradients = law_gradients(ranks, law, world, step);
    const auto last = static_cast<std::size_t>(world) - 1;
    PerRank owed(last);
    for (std::size_t rank = 0; rank < last; ++rank) owed[rank] = ranks.kept(rank);
    const auto fingerprint = ranks.method(0).fingerprint();
    ranks.transport(last).abandon("this rank leaves");
    (void)ranks.step(gradients);
    for (std::size_t rank = 0; rank < last; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      ASSERT_NE(ranks.thrown[rank], nullptr);
      EXPECT_EQ(ranks.method(rank).fingerprint(), fingerprint);
      if (!ranks.saved(rank).has_summed) continue;
      const auto kept = ranks.kept(rank);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        ASSERT_NEAR(kept[i], owed[rank][i] + gradients[rank][i], 1e-4) << i;
      }
    }
  }
};

// In the uncompressed steps at the start as well as later.
TEST_P(FailedExchange, KeepsTheGradient) {
  const std::string& spec = GetParam().spec;
  std::set<unsigned> steps{0, steps_of(spec, 0), steps_of(spec, 3)};
  // Momentum inside adds earlier gradients as well.
  if (Spec::parse(spec).update().value_or(Update{}).momentum > 0) steps = {0};
  for (const int world : GetParam().worlds) {
    if (world == 1) continue;  // nobody else is there
    for (const auto& layout : {shapeless(1009), mixed_layout()}) {
      for (const unsigned step : steps) {
        SCOPED_TRACE(testing::Message()
                     << world << " ranks, " << layout.elements << " elements, step " << step);
        leave(layout, world, step);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Returns laws(), and specs whose numbers or several words take another way through the code.
std::vector<Law> failing_laws() {
  std::vector<Law> all = laws();
  for (const char* spec :
       {"topk:chunk=100", "sketch:k=20", "sketch:k=20,collective=root", "sketch:momentum=0.9",
        "sketch:momentum=0.9,k=20", "dqsg:clip=1", "dqsg:feedback=on,collective=gather",
        "dqsg:feedback=on,collective=root", "dqsg:feedback=on,collective=owner",
        "dqsg:clip=1,collective=owner", "variance:zeta=0.5"}) {
    all.push_back({spec, {2, 3}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Laws, FailedExchange, testing::ValuesIn(failing_laws()), name_of<Law>);

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

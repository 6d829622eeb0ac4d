// The second round of `sketch` in multiples of a shared quantum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/ranks.h"
#include "tests/test_world.h"
#include "thinreduce/collective/owner.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/sketch/quantum.h"
#include "thinreduce/methods/sketch/rounds.h"

namespace thinreduce::values_test {
namespace {

constexpr std::size_t kOddSizes[] = {1, 2, 63, 1009, 5003};

double largest_magnitude(const PerRank& values) {
  double largest = 0;
  for (const auto& one : values) {
    for (const double value : one) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

PerRank residuals(TestWorld& ranks, int world) {
  PerRank all;
  for (int rank = 0; rank < world; ++rank) {
    all.push_back(ranks.residual(static_cast<std::size_t>(rank)));
  }
  return all;
}

// Applied means times N plus residuals are the sum of all gradients, up to the rounding of floats
// in the sums that every method has: of gradients into residuals, and of the division by N.
TEST(SketchValues, NothingIsLostOverManySteps) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : kOddSizes) {
      for (const char* more : {"", ",collective=root", ",candidates=1000"}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << more);
        TestWorld ranks(world, std::string("sketch:density=0.05,min_values=1,momentum=0") + more,
                        elements);
        std::vector<double> given(elements);
        std::vector<double> got(elements);
        const unsigned steps = elements == 1009 ? 25 : 5;
        for (unsigned step = 0; step < steps; ++step) {
          const auto gradients = normal_gradients(world, elements, step);
          const auto sum = exact_sum(gradients);
          const auto mean = ranks.mean(gradients);
          for (std::size_t i = 0; i < elements; ++i) {
            given[i] += sum[i];
            got[i] += static_cast<double>(mean[i]) * world;
          }
        }
        const auto held = exact_sum(residuals(ranks, world));
        // Residuals are below 2^6: an addition is off by 2^-19 at most, and there are steps * N.
        for (std::size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(got[i] + held[i], given[i], steps * world * 0x1p-19) << i;
        }
      }
    }
  }
}

// One step with every element a candidate: the mean equals that of f32 up to half a quantum per
// rank, and the remainder of an applied value is at most half a quantum.
TEST(SketchValues, EqualF32WithinTheQuantum) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : kOddSizes) {
      for (const char* more : {"", ",collective=root"}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << more);
        const std::string spec = "sketch:density=1,momentum=0" + std::string(more);
        TestWorld ranks(world, spec, elements);
        TestWorld floats(world, spec + ",values=f32", elements);
        const auto gradients = normal_gradients(world, elements, 11);
        const SharedQuantum quantum(static_cast<float>(largest_magnitude(gradients)), world);
        const auto mean = ranks.mean(gradients);
        const auto expected = floats.mean(gradients);
        for (std::size_t i = 0; i < elements; ++i) {
          // All ranks' halves of a quantum, divided by N; the rest is rounding of f32's sums.
          ASSERT_NEAR(mean[i], expected[i], 0.5 * quantum.quantum() + 1e-5);
        }
        const auto held = residuals(ranks, world);
        for (std::size_t i = 0; i < elements; ++i) {
          if (mean[i] == 0) continue;
          for (const auto& one : held) ASSERT_LE(std::abs(one[i]), 0.5f * quantum.quantum());
        }
        EXPECT_EQ(largest_magnitude(residuals(floats, world)), 0);
      }
    }
  }
}

TEST(SketchValues, TakeHalfTheBytes) {
  constexpr std::size_t kElements = 20011;
  const auto payload = [&](const std::string& more) {
    TestWorld ranks(3, "sketch:k=1000,candidates=2,nominees=0,columns=160" + more, kElements);
    (void)ranks.mean(normal_gradients(3, kElements, 12));
    return ranks.payload_bytes[0];
  };
  constexpr std::size_t kRow = std::size_t{160} * 2;  // bytes of the cells of one row
  // Frame, prefix and scale of each of three messages with cells; 4 bytes for the quantum of i16.
  constexpr std::size_t kMessages = 3 * (kFrameHeaderBytes + kOwnerPrefixBytes + 4);
  EXPECT_EQ(payload(",rows=1"), kRow + kMessages + 4 + 2 * 2000);
  EXPECT_EQ(payload(",rows=3,values=f32"), 3 * kRow + kMessages + 4 * 2000);
}

// With too many ranks for enough multiples per rank, values are sent as floats.
TEST(SketchValues, ManyRanksUseFloats) {
  for (const int world : {511, 512}) {
    MethodSetup setup;
    setup.layout = {.id = 0, .elements = 100, .tensors = {}};
    setup.world = world;
    const auto method = Spec::parse("sketch:density=1").make(setup);
    const auto alone = connect_threads(1);
    Exchange exchange(*alone[0], Seconds(20), {});
    std::vector<float> values(100, 1);
    method->reduce(Bucket{setup.layout, values, {}}, exchange);
    EXPECT_EQ(exchange.payload_bytes, world == 511 ? 204u : 400u);
  }
}

// A run saved after some steps and loaded into new methods continues with the same bits.
TEST(SketchValues, ResumeToTheSameBits) {
  for (const char* spec : {"sketch:k=50,momentum=0.9", "sketch:k=50,collective=root"}) {
    TestWorld ranks(3, spec, 5003);
    TestWorld resumed(3, spec, 5003);
    for (unsigned step = 0; step < 6; ++step) {
      const auto gradients = normal_gradients(3, 5003, step);
      const auto mean = ranks.mean(gradients);
      const auto other = resumed.mean(step < 3 ? normal_gradients(3, 5003, 99 + step) : gradients);
      if (step >= 3) {
        ASSERT_EQ(mean, other) << spec << ", step " << step;
      }
      if (step != 2) continue;
      for (std::size_t rank = 0; rank < 3; ++rank) resumed.load(rank, ranks.saved(rank));
    }
  }
}

// Rank 1's payload to the root has the right length, but multiples that are out of range.
TEST(SketchValues, HostileMultiplesAreRefusedByTheRoot) {
  const std::vector<std::uint32_t> candidates{2, 5, 7};
  for (const int word : {16383, -16383, 16384, -16384, 32767, -32768}) {
    const auto thrown = try_ranks(2, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(20), {});
      const std::vector<float> own(10, 1);
      try {
        if (exchange.rank() == 0) {
          SketchRounds rounds({.max_candidates = 3, .k = 3, .collective = SketchCollective::root});
          rounds.begin(exchange, largest_finite(own));
          const auto sums = rounds.find_largest(exchange, candidates, own);
          for (const float sum : sums.sums) ASSERT_LE(std::abs(sum), 4);
          return;
        }
        (void)QuantumAgreement(exchange, largest_finite(own)).conclude(exchange);
        const std::vector<std::int16_t> words(3, static_cast<std::int16_t>(word));
        (void)through_root(exchange, 0, std::as_bytes(std::span(words)), 64, {});
      } catch (const Error& error) {
        exchange.transport().abandon(error.what());
        throw;
      }
    });
    if (std::abs(word) <= 16383) {
      EXPECT_EQ(thrown[0], nullptr) << word;
    } else {
      EXPECT_THAT(error_text(thrown[0], ErrorCode::bad_frame), testing::HasSubstr("rank 1 sent"));
    }
  }
}

TEST(SketchValues, AreAnOption) {
  EXPECT_NO_THROW((void)Spec::parse("sketch:values=f32"));
  EXPECT_THROW((void)Spec::parse("sketch:values=i8"), Error);
}

}  // namespace
}  // namespace thinreduce::values_test

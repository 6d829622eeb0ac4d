#include "thinreduce/methods/fft/fft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "tests/test_data.h"
#include "tests/test_world.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/fft/blocks.h"
#include "thinreduce/methods/fft/range_float.h"

namespace thinreduce::fft_test {
namespace {

using Floats = std::vector<float>;

double energy(const Floats& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// Squared error over energy.
double normalised_error(const Floats& truth, const Floats& result) {
  Floats difference(truth.size());
  for (std::size_t i = 0; i < truth.size(); ++i) difference[i] = result[i] - truth[i];
  return energy(difference) / energy(truth);
}

// A random walk with slow decay: neighbours are correlated, as in a row of a layer's gradient.
Floats smooth_field(std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(elements);
  float state = 0;
  for (auto& value : values) value = state = 0.98f * state + normal(random);
  return values;
}

// Returns one rank's mean of a gradient, without feedback.
Floats sparsified(const std::string& options, const Floats& gradient) {
  TestWorld world(1, "fft:feedback=off," + options, gradient.size());
  return world.mean({gradient});
}

// Returns the largest `fraction` of the values as the same range floats.
Floats topk_quantized(const Floats& values, double fraction, int bits) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return std::abs(values[a]) > std::abs(values[b]); });
  order.resize(static_cast<std::size_t>(fraction * static_cast<double>(values.size())));
  Floats kept;
  for (const auto i : order) kept.push_back(values[i]);
  const auto format = kernels::RangeFloat::fitting(kernels::range_of(kept), bits, kept);
  Floats result(values.size());
  for (const auto i : order) result[i] = format.decode(format.encode(values[i]));
  return result;
}

// theta=0 and 16 bits give the mean, up to the rounding of the codes (at most 2^-9 of a
// coefficient, 2^-12 or less for these) and of the transform.
TEST(Fft, KeepingAllIsTheMean) {
  for (const int world : kWorlds) {
    for (const auto elements : kBucketSizes) {
      if (elements > 5000 && world > 2) continue;
      for (const char* transform : {"fft", "dct"}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << ' ' << transform);
        TestWorld ranks(world, std::string("fft:theta=0,bits=16,transform=") + transform, elements);
        const auto gradients = normal_gradients(world, elements, 1);
        const auto mean = ranks.mean(gradients);
        const auto sum = exact_sum(gradients);
        for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(mean[i], sum[i] / world, 4e-3) << i;
      }
    }
  }
}

// The error is the dropped energy (Parseval), and the kept pairs hold at least their fraction.
TEST(Fft, ErrorIsTheDroppedEnergy) {
  for (const char* transform : {"fft", "dct"}) {
    for (const double theta : {0.3, 0.85, 0.99}) {
      const auto gradient = smooth_field(16384, 7);
      TestWorld ranks(
          1, "fft:bits=16,feedback=off,theta=" + std::to_string(theta) + ",transform=" + transform,
          gradient.size());
      const auto mean = ranks.mean({gradient});
      const double kept = ranks.statistics[0].at("kept_energy");
      EXPECT_GE(kept, 1 - theta);
      EXPECT_NEAR(normalised_error(gradient, mean), 1 - kept, 1e-5);
      EXPECT_EQ(ranks.statistics[0].at("theta"), theta);
    }
  }
}

// The point of the method: at the same fraction and bits it loses much less than top-k where
// neighbours are correlated.
TEST(Fft, BeatsTopKOnSmoothFields) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    const auto gradient = smooth_field(65536, seed);
    const double topk = normalised_error(gradient, topk_quantized(gradient, 0.15, 10));
    for (const char* block : {"block=256", "block=1024", "block=256,transform=dct"}) {
      const double fft = normalised_error(
          gradient, sparsified(std::string("theta=0.85,bits=10,") + block, gradient));
      EXPECT_LT(fft, topk / 3) << block;
    }
  }
}

// It has no advantage on independent values, and loses on a spike, which has all frequencies.
TEST(Fft, LosesToTopKOnNoiseAndSpikes) {
  const auto noise = normal_gradients(1, 65536, 1)[0];
  EXPECT_GT(normalised_error(noise, sparsified("theta=0.85", noise)),
            normalised_error(noise, topk_quantized(noise, 0.15, 10)));
  Floats spikes(65536);
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i)
    spikes[random() % spikes.size()] = random() % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_LT(normalised_error(spikes, topk_quantized(spikes, 0.15, 10)), 1e-4);
  EXPECT_GT(normalised_error(spikes, sparsified("theta=0.85", spikes)), 0.3);
}

// A spike arrives after several steps: the next steps send what a step dropped.
TEST(Fft, OneSpike) {
  for (const float size : {1e-30f, 1.0f, 1e28f}) {
    TestWorld ranks(2, "fft:theta=0.9", 1009);
    PerRank gradients(2, Floats(1009));
    gradients[1][500] = size;
    double applied = 0;
    for (int step = 0; step < 40; ++step) {
      const auto mean = ranks.mean(gradients);
      EXPECT_EQ(kernels::first_nonfinite(mean), mean.size());
      applied += static_cast<double>(mean[500]);
      gradients[1][500] = 0;
    }
    EXPECT_NEAR(applied / (static_cast<double>(size) / 2), 1, 0.02);
  }
}

TEST(Fft, ZerosCostNothing) {
  TestWorld ranks(3, "fft", 70000);
  EXPECT_EQ(ranks.mean(PerRank(3, Floats(70000))), Floats(70000));
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, 2 * kFrameHeaderBytes);
}

TEST(Fft, EmptyBucket) {
  TestWorld ranks(2, "fft", 0);
  EXPECT_TRUE(ranks.mean(PerRank(2)).empty());
}

// A bitmap would give 16; positions are shorter than that.
TEST(Fft, Ratio) {
  constexpr std::size_t kElements = 256 * 1024;
  TestWorld ranks(2, "fft:theta=0.85,bits=10", kElements);
  (void)ranks.mean(normal_gradients(2, kElements, 4));
  const auto sent = ranks.transport(0).total_traffic().bytes_sent;
  EXPECT_GT(4.0 * kElements / static_cast<double>(sent), 17);
}

// Three pieces, the last of them short. A tensor ends in the middle of the second.
constexpr std::size_t kThreePieces = (std::size_t{2} << 19) + 5003;
BucketLayout three_pieces() {
  BucketLayout layout;
  for (const std::size_t size : {std::size_t{700'001}, kThreePieces - 700'001}) {
    layout.add("t", {static_cast<std::int64_t>(size)});
  }
  return layout;
}

TEST(Fft, PiecesTogetherAreTheBucket) {
  for (const char* spec : {"fft:theta=0.95", "fft:theta=0.95,block=64,transform=dct"}) {
    TestWorld ranks(2, spec, three_pieces());
    const auto gradients = normal_gradients(2, kThreePieces, 6);
    const auto mean = ranks.mean(gradients);
    const auto sum = exact_sum(gradients);
    const auto first = ranks.residual(0), second = ranks.residual(1);
    for (std::size_t i = 0; i < kThreePieces; ++i) {
      ASSERT_NEAR(2.0 * mean[i] + first[i] + second[i], sum[i], 2e-5) << i;
    }
    // One frame per piece.
    EXPECT_EQ(ranks.transport(0).total_traffic().messages_sent, 6u);
  }
}

// The other rank sends two valid pieces and then an invalid one: the delivered pieces go back to
// the residual too.
TEST(Fft, AWrongPieceKeepsTheGradient) {
  TestWorld ranks(2, "fft:theta=0.95", three_pieces());
  const auto gradients = normal_gradients(1, kThreePieces, 7);
  FrameId id;
  id.elements = kThreePieces;
  std::jthread peer([&] {
    Exchange exchange(ranks.transport(1), Seconds(20), id);
    const std::vector<std::byte> wrong(100, std::byte{1});
    PieceWork work;
    work.pieces = 3;
    work.limit = std::size_t{1} << 20;
    work.write = [](Range) {};
    work.piece = [&](std::size_t piece) {
      return std::span(wrong).first(piece == 2 ? wrong.size() : 0);
    };
    work.take = [](Range, std::span<const std::span<const std::byte>>) {};
    try {
      gather_pieces(exchange, work);
    } catch (const Error&) {
      // Rank 0 refuses the third piece.
    }
  });
  auto values = gradients[0];
  Exchange exchange(ranks.transport(0), Seconds(20), id);
  try {
    ranks.method(0).reduce(Bucket{three_pieces(), values, {}}, exchange);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("FFT payload of rank 1"));
  }
  ranks.transport(0).abandon("a wrong piece");
  EXPECT_NE(values, gradients[0]);  // pieces were delivered
  const auto held = ranks.residual(0);
  for (std::size_t i = 0; i < kThreePieces; ++i) {
    ASSERT_NEAR(held[i], gradients[0][i], i < std::size_t{2} << 19 ? 5e-6 : 0) << i;
  }
}

// Residual and gradient overflow: all ranks get the same error, and none a mean.
// Coefficients beyond the maximum are clipped, and the clipped part stays in the residual.
TEST(Fft, HugeCoefficientsAreCut) {
  TestWorld ranks(1, "fft:theta=0", 256);
  const auto mean = ranks.mean({Floats(256, 1e33f)});
  EXPECT_EQ(kernels::first_nonfinite(mean), mean.size());
  EXPECT_GT(mean[0], 0);
  EXPECT_GT(ranks.residual(0)[0], 0.9e33f);
}

TEST(Fft, SavedStateResumesToTheSameBits) {
  for (const char* spec : {"fft", "fft:theta=auto,energy=0.9,transform=dct", "fft:collective=owner",
                           "fft:collective=owner,theta=auto,energy=0.9"}) {
    TestWorld first(3, spec, 4099), second(3, spec, 4099);
    for (unsigned step = 0; step < 3; ++step) (void)first.mean(normal_gradients(3, 4099, step));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      second.load(rank, first.saved(rank));
      EXPECT_EQ(first.method(rank).fingerprint(), second.method(rank).fingerprint());
    }
    for (unsigned step = 3; step < 6; ++step) {
      const auto gradients = normal_gradients(3, 4099, step);
      EXPECT_EQ(first.mean(gradients), second.mean(gradients));
    }
  }
}

TEST(Fft, SameBitsOnEveryTarget) {
  for (const char* spec : {"fft:block=512", "fft:block=512,collective=owner"}) {
    std::vector<Floats> means;
    std::vector<std::uint64_t> bytes;
    kernels::on_every_target([&] {
      TestWorld ranks(2, spec, 140001);
      (void)ranks.mean(normal_gradients(2, 140001, 1));
      means.push_back(ranks.mean(normal_gradients(2, 140001, 2)));
      bytes.push_back(ranks.transport(0).total_traffic().bytes_sent);
    });
    for (std::size_t i = 1; i < means.size(); ++i) {
      EXPECT_TRUE(kernels::same_bits<float>(means[i], means[0]));
      EXPECT_EQ(bytes[i], bytes[0]);
    }
  }
}

TEST(Fft, ThetaFollowsItsSchedule) {
  TestWorld ranks(2, "fft:theta=0.8,theta_end=0.4,schedule=linear,steps=4", 1009);
  for (const double expected : {0.8, 0.7, 0.6, 0.5, 0.4, 0.4}) {
    (void)ranks.mean(normal_gradients(2, 1009, 1));
    for (const auto& statistics : ranks.statistics) {
      EXPECT_NEAR(statistics.at("theta"), expected, 1e-12);
    }
  }
}

// Ranks with very different gradients agree on theta, which falls until enough energy is kept.
TEST(Fft, AutomaticThetaFallsUntilEnoughIsKept) {
  constexpr std::size_t kElements = 4096;
  TestWorld ranks(3, "fft:theta=auto,energy=0.8", kElements);
  for (unsigned step = 0; step < 30; ++step) {
    auto gradients = normal_gradients(3, kElements, step);
    gradients[0] = smooth_field(kElements, step);
    (void)ranks.mean(gradients);
    for (std::size_t rank = 1; rank < 3; ++rank) {
      ASSERT_EQ(ranks.statistics[rank].at("theta"), ranks.statistics[0].at("theta"));
      ASSERT_EQ(ranks.method(rank).fingerprint(), ranks.method(0).fingerprint());
    }
    const double theta = ranks.statistics[0].at("theta");
    EXPECT_TRUE(step == 0 ? theta == 0.85 : theta < 0.85);
  }
  EXPECT_LT(ranks.statistics[0].at("theta"), 0.7);
  EXPECT_GT(ranks.statistics[0].at("kept_energy"), 0.75);
}

// Every element of a compressed tensor is in exactly one run, no element of a raw tensor is in any,
// and no block has elements of two tensors.
TEST(FftBlocks, FollowTheTensors) {
  BucketLayout layout;
  const std::vector<std::pair<std::size_t, bool>> sizes = {
      {64 * 20 + 3, false}, {100, true}, {1, false}, {64 * 16, false}, {0, false}, {65, false}};
  for (const auto& [size, raw] : sizes) {
    layout.add("t", {static_cast<std::int64_t>(size)});
    if (raw) layout.tensors.pop_back();
  }
  FftBlocks blocks(layout, 64, kernels::Transform::fft);
  EXPECT_EQ(blocks.blocks(), 21u + 1 + 16 + 2);
  EXPECT_EQ(blocks.groups(), 3u);
  std::vector<int> covered(layout.elements);
  Floats values = normal_gradients(1, layout.elements, 1)[0], back(layout.elements);
  Floats spectrum(blocks.group_floats());
  for (std::size_t group = 0; group < blocks.groups(); ++group) {
    blocks.to_spectrum(group, values, {}, spectrum);
    blocks.from_spectrum(group, spectrum, [&](std::size_t offset, std::span<const float> run) {
      std::copy(run.begin(), run.end(), back.begin() + static_cast<long>(offset));
      for (std::size_t i = 0; i < run.size(); ++i) ++covered[offset + i];
    });
  }
  std::size_t i = 0;
  for (const auto& [size, raw] : sizes) {
    for (const std::size_t end = i + size; i < end; ++i) {
      ASSERT_EQ(covered[i], raw ? 0 : 1);
      ASSERT_NEAR(back[i], raw ? 0 : values[i], 2e-6);
    }
  }
}

TEST(Fft, OptionsAreChecked) {
  for (const char* spec :
       {"fft:theta=1", "fft:theta=-0.1", "fft:theta=often", "fft:bits=3", "fft:bits=17",
        "fft:block=100", "fft:block=32", "fft:transform=dst", "fft:schedule=exp", "fft:steps=0",
        "fft:mantissa=16", "fft:energy=2", "fft:feedback=perhaps", "fft:bits=8,mantissa=8"}) {
    EXPECT_THROW((void)Spec::parse(spec), Error) << spec;
  }
  EXPECT_EQ(Spec::parse("fft").full_text(),
            Spec::parse("fft:theta=0.85,bits=10,mantissa=auto,block=auto").full_text());
}

}  // namespace
}  // namespace thinreduce::fft_test

#include "thinreduce/methods/gradiveq/gradiveq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/gradiveq_world.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/methods/gradiveq/slicing.h"

namespace thinreduce::gradiveq_test {
namespace {

const std::vector<std::vector<std::int64_t>> kRealShapes = {
    {16, 16, 3, 3}, {16}, {10, 512}, {8, 3, 5, 5}, {12, 17}};

TEST(Gradiveq, SameBitsInAllWorldsAndShapes) {
  for (const char* layout : {"auto", "paper", "channel", "row"}) {
    for (const int world : {1, 2, 3, 4, 8}) {
      if (world > 2 && std::string(layout) != "auto") continue;
      SCOPED_TRACE(testing::Message() << world << " ranks, " << layout);
      auto settings = quick(2, 4);
      settings.layout = layout;
      auto shapes = layout_of(kRealShapes);
      const auto elements = shapes.elements;
      GradiveqWorld ranks(world, settings, std::move(shapes));
      for (unsigned step = 0; step < 9; ++step) {
        const auto gradients = normal_gradients(world, elements, step);
        const auto mean = ranks.mean(gradients);
        if (step < 2) {
          EXPECT_LT(error_of(mean, gradients), 1e-12);
        } else if (ranks.statistics[0].at("renewed") == 0) {
          EXPECT_LT(ranks.payload_bytes[0], elements * 4 / 3);
        }
      }
    }
  }
}

TEST(Gradiveq, OddSizes) {
  for (const std::size_t elements : {0, 1, 2, 5, 63, 1000, 1009, 4099}) {
    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      for (const bool phases : {false, true}) {
        auto settings = quick(1, 3);
        settings.phases = phases;
        settings.feedback = !phases;
        GradiveqWorld ranks(world, settings, shapeless(elements));
        for (unsigned step = 0; step < 12; ++step) {
          const auto mean = ranks.mean(normal_gradients(world, elements, step));
          for (const float value : mean) ASSERT_TRUE(std::isfinite(value));
        }
      }
    }
  }
}

TEST(Gradiveq, GradientsWithFewDirectionsAreExactOnceTheBasisIsKnown) {
  constexpr std::size_t kSlices = 40;
  for (const auto& [slice, basis_size] :
       {std::pair<std::size_t, std::size_t>{16, 2}, {40, 5}, {64, 8}}) {
    for (const int world : {1, 2, 4, 8}) {
      for (const bool phases : {false, true}) {
        SCOPED_TRACE(testing::Message() << slice << " " << basis_size << ", " << world << " ranks");
        auto settings = quick(3, 50);
        settings.phases = phases;
        settings.feedback = !phases;
        settings.slice = slice;
        set_basis_size(settings, basis_size);
        GradiveqWorld ranks(world, settings, shapeless(kSlices * slice + 3));
        for (unsigned step = 0; step < 10; ++step) {
          auto gradients = few_direction_gradients(world, kSlices, slice, basis_size, step);
          for (auto& gradient : gradients) gradient.resize(kSlices * slice + 3, 0.5f);
          EXPECT_LT(error_of(ranks.mean(gradients), gradients), 1e-11) << step;
        }
        EXPECT_LT(ranks.statistics[0].at("loss"), 1e-5);
      }
    }
  }
}

TEST(Gradiveq, AFullBasisIsExact) {
  auto settings = quick(1, 3);
  settings.slice = 24;
  set_basis_size(settings, 24);
  GradiveqWorld ranks(3, settings, shapeless(24 * 30 + 7));
  for (unsigned step = 0; step < 10; ++step) {
    const auto gradients = normal_gradients(3, 24 * 30 + 7, step);
    EXPECT_LT(error_of(ranks.mean(gradients), gradients), 1e-11) << step;
  }
}

struct LayerCase {
  std::vector<std::int64_t> shape;
  const char* layout;
  std::size_t slice;  // 0: auto
  std::size_t rank;   // 0: auto
  int world;
};
const std::vector<LayerCase> kLayerCases = {
    {{128, 64, 3, 3}, "row", 576, 24, 1},   {{128, 64, 3, 3}, "paper", 256, 32, 2},
    {{128, 64, 3, 3}, "channel", 0, 0, 3},  {{128, 64, 3, 3}, "channel", 64, 5, 4},
    {{128, 64, 3, 3}, "row", 100, 100, 5},  {{128, 64, 3, 3}, "auto", 0, 0, 6},
    {{128, 64, 3, 3}, "paper", 1024, 1, 7}, {{128, 64, 3, 3}, "channel", 192, 24, 8},
    {{512, 3136}, "row", 0, 0, 2},          {{512, 3136}, "paper", 512, 16, 3},
    {{512, 3136}, "row", 196, 8, 8},
};

// One noise for all, each rank with its own part of it: large layers of many ranks take long to
// draw.
PerRank shifted_noise(int world, std::size_t elements, unsigned seed) {
  const auto noise = normal_gradients(1, elements + 1000, seed)[0];
  PerRank gradients;
  for (int rank = 0; rank < world; ++rank) {
    const auto begin = noise.begin() + 97 * rank;
    gradients.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(elements));
  }
  return gradients;
}

// The first step with a new basis is the definition: U U^T (sum - mean) + mean, whatever the shape,
// the cut, and the number of ranks among which the sum is divided.
TEST(Gradiveq, RealLayersAreProjectedAsDefined) {
  for (const auto& c : kLayerCases) {
    SCOPED_TRACE(testing::Message()
                 << c.layout << " " << c.slice << " " << c.rank << ", " << c.world << " ranks");
    auto settings = quick(2, 50);
    settings.phases = true;  // all of the mean is taken off
    settings.feedback = false;
    settings.warmup = 0;
    settings.collect = 2;
    settings.layout = c.layout;
    settings.slice = c.slice;
    if (c.rank > 0) set_basis_size(settings, c.rank);
    const auto layout = layout_of({c.shape});
    GradiveqWorld ranks(c.world, settings, layout);
    for (unsigned step = 0; step < 2; ++step) {
      (void)ranks.mean(shifted_noise(c.world, layout.elements, step));
    }
    const auto before = ranks.saved(0);
    const auto gradients = shifted_noise(c.world, layout.elements, 2);
    const auto mean = ranks.mean(gradients);

    const auto& basis = before.find("basis");
    const auto& taken_off = before.find("mean");
    const auto rank = before.find_number("basis size");
    const auto order = before.find_number("order");
    Slicing slicing = Slicing::of_tensor(
        layout.tensors[0],
        std::string(c.layout) == "auto" ? std::vector{"channel", "row", "paper"}[order] : c.layout);
    slicing.cut(basis.size() / rank);
    const std::size_t k = slicing.slice();
    ASSERT_GT(slicing.slices(), 0U);
    EXPECT_TRUE(c.rank == 0 || rank == c.rank);
    const auto sum = exact_sum(gradients);
    const std::vector<float> sums(sum.begin(), sum.end());
    std::vector<float> whole(k), center(k), result(k);
    std::vector<double> projection(rank);
    const std::size_t every = std::max<std::size_t>(1, slicing.slices() / 300);
    for (std::size_t s = 0; s < slicing.slices(); s += every) {
      slicing.gather(sums, s * k, whole);
      slicing.gather(taken_off, s * k, center);
      slicing.gather(mean, s * k, result);
      std::fill(projection.begin(), projection.end(), 0.0);
      for (std::size_t i = 0; i < k; ++i) {
        for (std::size_t j = 0; j < rank; ++j) {
          projection[j] += static_cast<double>(basis[i * rank + j]) *
                           (static_cast<double>(whole[i]) - static_cast<double>(center[i]));
        }
      }
      for (std::size_t i = 0; i < k; ++i) {
        double expected = center[i];
        for (std::size_t j = 0; j < rank; ++j) {
          expected += static_cast<double>(basis[i * rank + j]) * projection[j];
        }
        ASSERT_NEAR(result[i], expected / c.world, 2e-5 * std::sqrt(static_cast<double>(k)));
      }
    }
    // Elements that fill no slice are exact.
    for (std::size_t place = slicing.sliced(); place < layout.elements; ++place) {
      float value = 0;
      float truth = 0;
      slicing.gather(mean, place, {&value, 1});
      slicing.gather(sums, place, {&truth, 1});
      ASSERT_NEAR(value, truth / static_cast<float>(c.world), 1e-5);
    }
  }
}

// Encodes everything before the sum starts and decodes everything after it has ended.
class Unpipelined final : public SumCodec {
 public:
  explicit Unpipelined(SumCodec& inner) : inner_(inner) { inner.encode({0, inner.units()}); }
  [[nodiscard]] std::size_t units() const override { return inner_.units(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return inner_.unit_bytes(); }
  [[nodiscard]] std::span<std::byte> wire(Range range, int summed) override {
    return inner_.wire(range, summed);
  }
  void encode(Range) override {}
  void add(Range range, int summed, std::span<const std::byte> incoming, int peer) override {
    inner_.add(range, summed, incoming, peer);
  }
  void add_part(Range range, int summed, std::span<const std::byte> part, int peer) override {
    inner_.add_part(range, summed, part, peer);
  }
  void decode(Range, int) override {}

 private:
  SumCodec& inner_;
};

TEST(Gradiveq, PipelinedIsPlainBitForBit) {
  const auto tiny = [](Exchange& exchange, SumCodec& codec) {
    ring_all_reduce(exchange, codec, RingOptions{.segment_bytes = 600});
  };
  const auto huge = [](Exchange& exchange, SumCodec& codec) {
    ring_all_reduce(exchange, codec, RingOptions{.segment_bytes = 1 << 30});
  };
  const auto plain = [](Exchange& exchange, SumCodec& codec) {
    Unpipelined whole(codec);
    ring_all_reduce(exchange, whole);
    codec.decode({0, codec.units()}, exchange.rank());
  };
  const auto owners = [](Exchange& exchange, SumCodec& codec) {
    owner_all_reduce(exchange, codec, OwnerSumOptions{.piece_bytes = 600});
  };
  for (const int world : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(testing::Message() << world << " ranks");
    std::vector<std::unique_ptr<GradiveqWorld>> worlds;
    std::size_t elements = 0;
    for (int which = 0; which < 5; ++which) {
      auto settings = quick(1, 3);
      settings.sample = settings.flush = 0.05;
      if (which == 1) settings.sum = tiny;
      if (which == 2) settings.sum = huge;
      if (which == 3) settings.sum = plain;
      if (which == 4) settings.sum = owners;
      auto shapes = layout_of({{16, 16, 3, 3}, {10, 256}, {7, 11}});
      elements = shapes.elements;
      worlds.push_back(std::make_unique<GradiveqWorld>(world, settings, std::move(shapes)));
    }
    for (unsigned step = 0; step < 8; ++step) {
      const auto gradients = normal_gradients(world, elements, step);
      const auto expected = worlds[0]->mean(gradients);
      for (std::size_t which = 1; which < worlds.size(); ++which) {
        const auto mean = worlds[which]->mean(gradients);
        ASSERT_EQ(std::memcmp(mean.data(), expected.data(), elements * sizeof(float)), 0)
            << "variant " << which << ", step " << step;
      }
    }
  }
}

// Nothing correlates, so seven eighths of every gradient are lost at first.
TEST(Gradiveq, WhiteNoiseIsConserved) {
  constexpr std::size_t kSlice = 32;
  constexpr std::size_t kElements = kSlice * 50 + 9;
  auto settings = quick(2, 7);
  settings.slice = kSlice;
  settings.sample = settings.flush = 0.03;
  settings.trigger = kNoVotes;
  GradiveqWorld ranks(3, settings, shapeless(kElements));
  Totals so_far(kElements);
  for (unsigned step = 0; step < 80; ++step) {
    const auto gradients = normal_gradients(3, kElements, step);
    so_far.add(gradients, ranks.mean(gradients));
    if (step % 6 != 3) continue;
    auto total = so_far.applied;
    double held = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto residual = residual_of(ranks.saved(rank), kSlice);
      for (std::size_t i = 0; i < kElements; ++i) {
        total[i] += static_cast<double>(residual[i]);
        held += std::abs(static_cast<double>(residual[i]));
      }
    }
    // Roundings of sums of up to 80 normal numbers.
    for (std::size_t i = 0; i < kElements; ++i)
      ASSERT_NEAR(total[i], so_far.given[i], 3e-4) << step;
    if (ranks.statistics[0].contains("loss")) {
      EXPECT_GT(held, 1);
    }
    // A slice waits for 33 steps at most.
    EXPECT_LT(held / (3 * kElements), 6) << step;
  }
}

TEST(Gradiveq, WhiteNoiseIsNoticed) {
  constexpr std::size_t kElements = 32 * 60;
  // By the energy rule: bases would not pay, so gradients travel whole and arrive exactly.
  auto by_energy = quick(8, 20);
  by_energy.slice = 32;
  by_energy.energy = 0.95;
  GradiveqWorld honest(2, by_energy, shapeless(kElements));
  // By the trigger: most ranks lose more than half, so bases are renewed as often as allowed.
  auto by_trigger = quick(8, 64);
  by_trigger.slice = 32;
  GradiveqWorld alarmed(2, by_trigger, shapeless(kElements));
  auto silenced_settings = by_trigger;
  silenced_settings.trigger = kNoVotes;
  GradiveqWorld silenced(2, silenced_settings, shapeless(kElements));
  double renewals = 0;
  for (unsigned step = 0; step < 40; ++step) {
    const auto gradients = normal_gradients(2, kElements, step);
    EXPECT_LT(error_of(honest.mean(gradients), gradients), 1e-12);
    (void)alarmed.mean(gradients);
    (void)silenced.mean(gradients);
    if (step < 8) continue;
    renewals += alarmed.statistics[0].at("renewed");
    EXPECT_GT(alarmed.statistics[0].at("loss"), 0.7);
    EXPECT_EQ(silenced.statistics[0].at("renewed"), 0);
  }
  EXPECT_EQ(renewals, 4);  // every eighth of 64 steps
}

// A layer that was noise and then lies in few dimensions is compressed again.
TEST(Gradiveq, TheEnergyRuleComesBack) {
  auto settings = quick(4, 6);
  settings.slice = 32;
  settings.energy = 0.9;
  settings.sample = 0.5;
  GradiveqWorld ranks(2, settings, shapeless(32 * 60));
  for (unsigned step = 0; step < 6; ++step) (void)ranks.mean(normal_gradients(2, 32 * 60, step));
  EXPECT_EQ(ranks.saved(0).find_number("basis size"), 0U);
  for (unsigned step = 6; step < 60; ++step) {
    (void)ranks.mean(few_direction_gradients(2, 60, 32, 3, step));
  }
  EXPECT_EQ(ranks.saved(0).find_number("basis size"), 3U);
}

// The layout in which slices correlate wins, and all ranks know.
TEST(Gradiveq, AutoChoosesTheOrderThatLosesLeast) {
  for (const std::string truth : {"paper", "row"}) {
    constexpr std::size_t kOut = 32;
    constexpr std::size_t kIn = 64;
    auto settings = quick(6, 50);
    settings.slice = 32;
    set_basis_size(settings, 2);
    GradiveqWorld ranks(3, settings, layout_of({{kOut, kIn}}));
    double last = 1;
    for (unsigned step = 0; step < 8; ++step) {
      auto gradients = few_direction_gradients(3, kOut * kIn / 32, 32, 2, step);
      if (truth == "paper") {
        for (auto& gradient : gradients) {
          auto turned = gradient;
          for (std::size_t o = 0; o < kOut; ++o) {
            for (std::size_t i = 0; i < kIn; ++i) turned[o * kIn + i] = gradient[i * kOut + o];
          }
          gradient = turned;
        }
      }
      last = error_of(ranks.mean(gradients), gradients);
    }
    EXPECT_LT(last, 1e-10) << truth;
    EXPECT_EQ(ranks.saved(1).find_number("order"), truth == "paper" ? 1U : 0U);
  }
}

TEST(Gradiveq, DefaultsSendAnEighth) {
  constexpr std::size_t kElements = 256 * 600;
  auto settings = gradiveq_settings(Spec::parse("gradiveq").options);
  settings.warmup = 1;
  GradiveqWorld ranks(2, settings, shapeless(kElements));
  const auto gradients = normal_gradients(2, kElements, 0);
  (void)ranks.mean(gradients);
  std::uint64_t bytes = 0;
  for (int step = 0; step < 10; ++step) {
    (void)ranks.mean(gradients);
    bytes += ranks.payload_bytes[0];
  }
  EXPECT_GT(10 * kElements * 4.0 / static_cast<double>(bytes), 7.9);
}

TEST(Gradiveq, GradientsThatOverflowAreAnErrorOnAllRanks) {
  GradiveqWorld ranks(2, quick(1, 5), shapeless(1000));
  (void)ranks.mean(normal_gradients(2, 1000, 0));
  (void)ranks.step(PerRank(2, std::vector<float>(1000, 3e38f)));
  for (const auto& thrown : ranks.thrown) EXPECT_NE(thrown, nullptr);
}

TEST(Gradiveq, RawTensorsAreLeftAlone) {
  auto layout = layout_of({{16, 16}, {64, 64}});
  layout.tensors.erase(layout.tensors.begin());
  auto settings = quick(1, 50);
  settings.trigger = kNoVotes;
  GradiveqWorld ranks(2, settings, layout);
  for (unsigned step = 0; step < 4; ++step) {
    auto gradients = normal_gradients(2, layout.elements, step);
    for (auto& gradient : gradients) std::fill_n(gradient.begin(), 256, 0.0f);
    (void)ranks.mean(gradients);
  }
  EXPECT_LT(ranks.payload_bytes[0], 64 * 64 * 4 / 4);
}

TEST(Gradiveq, OptionsAreChecked) {
  for (const char* spec :
       {"gradiveq:slice=1", "gradiveq:ratio=0.5", "gradiveq:layout=column",
        "gradiveq:sampling=never", "gradiveq:energy=0", "gradiveq:sampling=phases",
        "gradiveq:basis=8", "gradiveq:sample=0.01", "gradiveq:trigger=0.5"}) {
    EXPECT_THROW((void)Spec::parse(spec), Error) << spec;
  }
  const auto phases = Spec::parse("gradiveq:sampling=phases,feedback=off");
  EXPECT_EQ(gradiveq_settings(phases.options).interval, 400U);
}

}  // namespace
}  // namespace thinreduce::gradiveq_test

#include "thinreduce/methods/sketch/sketch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ranks.h"
#include "tests/test_world.h"
#include "thinreduce/collective/owner.h"
#include "thinreduce/collective/ring.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/sketch/count_sketch.h"
#include "thinreduce/methods/sketch/rounds.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce::sketch_test {
namespace {

using Indices = std::vector<std::size_t>;

// Returns the k non-zero values of largest magnitude by index; among equals the lower index wins.
Indices largest(const std::vector<float>& values, std::size_t k) {
  Indices order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return std::abs(values[a]) > std::abs(values[b]); });
  std::erase_if(order, [&](auto i) { return values[i] == 0; });
  order.resize(std::min(order.size(), k));
  std::ranges::sort(order);
  return order;
}

std::vector<float> zeros(std::size_t size) {
  return std::vector<float>(size);
}

// The algorithm on one thread, without a network; without nominees it is the paper's.
struct PlainSketch {
  std::size_t k, candidates, nominees, rows, columns;
  float momentum;
  PerRank u, v;

  PlainSketch(int world, std::size_t elements)
      : u(static_cast<std::size_t>(world), zeros(elements)), v(u) {}

  // Blocks of 64 elements are dealt to the ranks; each names its largest of them.
  [[nodiscard]] Indices name(std::uint64_t number) const {
    const std::size_t elements = v[0].size();
    Indices named;
    std::size_t dealt = 0;
    for (std::size_t turn = 0; turn < v.size(); ++turn) {
      const auto& one = v[(turn + v.size() - number % v.size()) % v.size()];
      std::vector<float> own(elements);
      const std::size_t before = nominees * dealt / elements;
      for (std::size_t i = 0; i < elements; ++i) {
        if (i / 64 % v.size() != turn) continue;
        own[i] = one[i];
        ++dealt;
      }
      const Indices more = largest(own, nominees * dealt / elements - before);
      named.insert(named.end(), more.begin(), more.end());
    }
    return named;
  }

  std::vector<float> step(const PerRank& gradients, std::uint64_t number) {
    const std::size_t elements = gradients[0].size();
    // As the method derives it from session seed 0 and bucket 0.
    CountSketch sum({.rows = rows, .columns = columns, .seed = mix(mix(mix(0)) + mix(number))});
    std::vector<float> exact(elements);
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      for (std::size_t i = 0; i < elements; ++i) {
        u[rank][i] = momentum * u[rank][i] + gradients[rank][i];
        v[rank][i] += u[rank][i];
        exact[i] += v[rank][i];
      }
    }
    const Indices named = name(number);
    for (const auto& one : v) {
      auto rest = one;
      for (const auto i : named) rest[i] = 0;
      CountSketch own({.rows = rows, .columns = columns, .seed = sum.seed()});
      own.accumulate(rest);
      sum.merge(own);
    }
    Indices chosen(elements);
    std::iota(chosen.begin(), chosen.end(), 0u);
    if (candidates + nominees < elements) {
      std::vector<float> estimates(elements);
      sum.estimate(0, estimates);
      for (const auto i : named) estimates[i] = 0;
      chosen = largest(estimates, candidates);
      chosen.insert(chosen.end(), named.begin(), named.end());
    }
    std::vector<float> at_candidates(elements);
    for (const auto i : chosen) at_candidates[i] = exact[i];
    std::vector<float> mean(elements);
    for (const auto i : largest(at_candidates, k)) {
      mean[i] = exact[i] * (1.0f / static_cast<float>(gradients.size()));
      for (auto& one : u) one[i] = k < elements ? 0 : one[i];
      for (auto& one : v) one[i] = 0;
    }
    return mean;
  }
};

// Whole numbers and a momentum of 1/2: every sum is exact, in whatever order; without momentum also
// in multiples of a quantum.
TEST(Sketch, EqualsThePlainAlgorithm) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : {1u, 5u, 63u, 1009u, 4099u}) {
      for (const char* more :
           {"momentum=0,nominees=0,values=i16", "momentum=0.5,nominees=0,values=f32",
            "momentum=0.5,nominees=0,values=f32,collective=root",
            "momentum=0,nominees=1.5,values=i16,collective=root",
            "momentum=0.5,nominees=1.5,values=f32",
            "momentum=0.5,nominees=1.5,values=f32,collective=root"}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << ", " << more);
        TestWorld ranks(world,
                        std::string("sketch:k=20,candidates=3,columns=80,rows=3,cells=f32,") + more,
                        elements);
        PlainSketch plain(world, elements);
        plain.k = std::min<std::size_t>(20, elements);
        plain.candidates = std::min<std::size_t>(3 * plain.k, elements);
        plain.nominees = 0;
        if (std::string_view(more).find("nominees=1.5") != std::string_view::npos) {
          plain.nominees = std::min((3 * plain.k + 1) / 2, elements);
        }
        plain.rows = 3;
        plain.columns = 80;
        plain.momentum = std::string_view(more).starts_with("momentum=0,") ? 0 : 0.5f;
        for (unsigned step = 0; step < 4; ++step) {
          const auto gradients = whole_gradients(world, elements, step);
          ASSERT_EQ(ranks.mean(gradients), plain.step(gradients, step));
          for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
            ASSERT_EQ(ranks.residual(rank), plain.v[rank]);
            ASSERT_EQ(ranks.residual(rank, "momentum"),
                      plain.momentum > 0 ? plain.u[rank] : std::vector<float>{});
          }
        }
      }
    }
  }
}

// With P k >= d, the top-k of the true sum is applied, whatever the cells.
TEST(Sketch, EnoughCandidatesGiveTheTrueTopK) {
  for (const int world : {1, 3, 4}) {
    for (const char* more : {"", ",collective=root", ",cells=f32,rows=1"}) {
      constexpr std::size_t kElements = 1009;
      TestWorld ranks(world, std::string("sketch:k=101,candidates=10,momentum=0") + more,
                      kElements);
      const auto gradients = whole_gradients(world, kElements, 1);
      std::vector<float> sum(kElements);
      for (const auto& one : gradients) {
        for (std::size_t i = 0; i < kElements; ++i) sum[i] += one[i];
      }
      std::vector<float> expected(kElements);
      for (const auto i : largest(sum, 101)) {
        expected[i] = sum[i] * (1.0f / static_cast<float>(world));
      }
      EXPECT_EQ(ranks.mean(gradients), expected);
    }
  }
}

// The reason for the second round. Every rank has large values at elements of its own, which the
// other ranks cancel, and small ones at 30 elements that all ranks have in common. No rank's top-k
// has any of the latter; the sum has nothing else.
TEST(Sketch, FindsWhatNoLocalTopKHolds) {
  constexpr std::size_t kElements = 20000;
  constexpr std::size_t kShared = 30;
  PerRank gradients(4, zeros(kElements));
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < kElements; ++i) {
    const float loud = normal(random);
    gradients[0][i] = loud;
    gradients[1][i] = -loud;
    gradients[2][i] = normal(random) / 100;
    gradients[3][i] = normal(random) / 100;
  }
  Indices shared;
  for (std::size_t s = 0; s < kShared; ++s) {
    shared.push_back(s * 641 + 7);
    for (auto& one : gradients) one[shared.back()] = 0.5f;
  }
  for (const auto& one : {gradients[0], gradients[1]}) {
    for (const auto i : largest(one, kShared)) {
      EXPECT_FALSE(std::ranges::binary_search(shared, i));
    }
  }
  const auto found = [&](const std::string& spec) {
    TestWorld ranks(4, spec, kElements);
    const auto mean = ranks.mean(gradients);
    return std::ranges::count_if(shared, [&](auto i) { return mean[i] == 0.5f; });
  };
  for (const char* more : {"", ",cells=f32", ",collective=root", ",momentum=0.9"}) {
    EXPECT_EQ(found(std::string("sketch:k=30,candidates=10,columns=512") + more), 30) << more;
  }
  EXPECT_EQ(found("topk:density=0.0015"), 0);
}

// Applied means times N plus residuals are the sum of all gradients; exactly, on whole numbers and
// N a power of two.
// In a sum the payload does not depend on the number of ranks; a rank sends less than twice it.
TEST(Sketch, BytesDoNotGrowWithTheRanks) {
  constexpr std::size_t kElements = 200000;
  constexpr std::size_t kCells = 5 * 2000;
  const auto payload = [&](int world, std::size_t k) {
    TestWorld ranks(
        world,
        "sketch:candidates=4,nominees=0,columns=2000,cells=f32,values=f32,k=" + std::to_string(k),
        kElements);
    ranks.link = kRingLink;
    (void)ranks.mean(normal_gradients(world, kElements, 4));
    for (int rank = 0; rank < world; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_EQ(ranks.transport(at).total_traffic().bytes_sent,
                ring_bytes_sent(rank, world, kCells, 4) + ring_bytes_sent(rank, world, 4 * k, 4));
      EXPECT_LT(ranks.transport(at).total_traffic().bytes_sent, 2 * ranks.payload_bytes[at]);
      EXPECT_EQ(ranks.payload_bytes[at], ranks.payload_bytes[0]);
    }
    return ranks.payload_bytes[0];
  };
  for (const int world : {2, 4, 8}) {
    EXPECT_EQ(payload(world, 2000), (kCells + 4 * 2000) * sizeof(float));
    EXPECT_EQ(payload(world, 4000), (kCells + 4 * 4000) * sizeof(float));
  }
}

// The same with the defaults, where one rank names elements to all others.
TEST(Sketch, NomineesDoNotGrowWithTheRanks) {
  constexpr std::size_t kElements = 200000;
  constexpr std::size_t kMessage = kFrameHeaderBytes + kOwnerPrefixBytes + sizeof(float);
  std::uint64_t first = 0;
  for (const int world : {2, 4, 8}) {
    TestWorld ranks(world, "sketch", kElements);
    (void)ranks.mean(normal_gradients(world, kElements, 4));
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
      EXPECT_LT(ranks.transport(rank).total_traffic().bytes_sent, 2 * ranks.payload_bytes[rank]);
      // One message with cells per owner.
      const auto bytes = ranks.payload_bytes[rank] - static_cast<std::size_t>(world) * kMessage;
      if (first == 0) first = bytes;
      EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(first), 8);  // rounding of shares
    }
  }
}

// Half of the sum is at 300 elements that are large on every rank, the other half at 30 elements
// that are large only in the sum. The first are nominated; without them the sketch, too small for
// all, shows the second.
TEST(Sketch, NomineesLeaveTheSketchToTheRest) {
  constexpr std::size_t kElements = 20000;
  PerRank gradients(4, zeros(kElements));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < kElements; ++i) {
    const float loud = normal(random);
    for (std::size_t rank = 0; rank < 4; ++rank) gradients[rank][i] = rank % 2 == 0 ? loud : -loud;
  }
  Indices open, hidden;
  for (std::size_t s = 0; s < 300; ++s) open.push_back(s * 61 + 3);
  for (std::size_t s = 0; s < 30; ++s) hidden.push_back(s * 641 + 7);
  for (auto& one : gradients) {
    for (const auto i : open) one[i] = 20;
    for (const auto i : hidden) one[i] = 1;
  }
  const auto found = [&](const std::string& spec, const Indices& places) {
    TestWorld ranks(4, spec, kElements);
    const auto mean = ranks.mean(gradients);
    return std::ranges::count_if(places, [&](auto i) { return mean[i] == gradients[0][i]; });
  };
  const std::string spec = "sketch:k=330,columns=256,candidates=0.4,nominees=";
  EXPECT_EQ(found(spec + "1", open), 300);
  EXPECT_EQ(found(spec + "1", hidden), 30);
  EXPECT_LT(found(spec + "0", hidden), 15);
}

TEST(Sketch, DefaultsGiveTenfold) {
  for (const std::size_t elements : {600003u, 1000000u}) {
    for (const char* spec : {"sketch", "sketch:cells=f32", "sketch:rows=3"}) {
      TestWorld ranks(2, spec, elements);
      (void)ranks.mean(normal_gradients(2, elements, 5));
      const double ratio = static_cast<double>(elements * sizeof(float)) /
                           static_cast<double>(ranks.payload_bytes[0]);
      EXPECT_GT(ratio, 10) << spec << ", " << elements;
      EXPECT_LT(ratio, 11.5) << spec << ", " << elements;
    }
  }
}

// A bucket for which the two rounds would cost more than they save is sent whole; its momentum is
// never stale, so it gets plain momentum.
TEST(Sketch, SmallBucketsGetPlainMomentum) {
  for (const char* spec : {"sketch:momentum=0.5", "sketch:momentum=0.5,min_values=1,density=1"}) {
    TestWorld ranks(2, spec, 5003);
    std::vector<float> velocity(5003);
    for (unsigned step = 0; step < 3; ++step) {
      const auto gradients = whole_gradients(2, 5003, step);
      for (std::size_t i = 0; i < velocity.size(); ++i) {
        velocity[i] = 0.5f * velocity[i] + (gradients[0][i] + gradients[1][i]) / 2;
      }
      ASSERT_EQ(ranks.mean(gradients), velocity) << spec;
      EXPECT_EQ(ranks.payload_bytes[0], 5003 * 2 + 4);
    }
  }
}

// Halfs range from 6e-8 to 65504; the agreed scale handles all other magnitudes.
TEST(Sketch, HalfCellsWorkAtAnyScale) {
  constexpr std::size_t kElements = 5000;
  for (const float scale : {1e-37f, 1e-20f, 1.0f, 1e20f, 1e35f}) {
    PerRank gradients(3, zeros(kElements));
    for (auto& one : gradients) {
      for (std::size_t i = 0; i < kElements; ++i) one[i] = static_cast<float>(i % 7) * scale / 100;
      for (std::size_t i = 9; i < kElements; i += 500) one[i] = scale * 10;
    }
    TestWorld ranks(3, "sketch:k=10,candidates=4,columns=256", kElements);
    const auto mean = ranks.mean(gradients);
    for (std::size_t i = 9; i < kElements; i += 500) {
      EXPECT_NEAR(mean[i] / scale, 10, 5e-4) << scale;  // half a quantum is 2^-11
    }
  }
}

TEST(Sketch, ZerosStayZeros) {
  for (const char* collective : {"ring", "root"}) {
    TestWorld ranks(3, std::string("sketch:min_values=1,collective=") + collective, 5000);
    EXPECT_EQ(ranks.mean(PerRank(3, zeros(5000))), zeros(5000));
    EXPECT_EQ(ranks.statistics[0].at("sent"), 0);
  }
}

TEST(Sketch, EmptyBucket) {
  TestWorld ranks(2, "sketch", 0);
  EXPECT_TRUE(ranks.mean(PerRank(2)).empty());
}

// A raw tensor has no candidates.
TEST(Sketch, RawTensorsAreLeftOut) {
  BucketLayout layout = layout_of({{30, 40}, {30, 40}, {30, 40}});
  layout.tensors.erase(layout.tensors.begin() + 1);
  auto gradients = normal_gradients(2, layout.elements, 6);
  for (auto& one : gradients) std::fill_n(&one[1200], 1200, 0.0f);
  for (const char* spec : {"sketch:k=20,columns=16", "sketch:k=20,columns=16,collective=root",
                           "sketch:k=2400", "sketch:density=1"}) {
    TestWorld ranks(2, spec, layout);
    const auto mean = ranks.mean(gradients);
    EXPECT_TRUE(std::all_of(&mean[1200], &mean[2400], [](float value) { return value == 0; }));
    const auto moved = std::ranges::count_if(mean, [](float value) { return value != 0; });
    EXPECT_EQ(moved, std::string_view(spec).starts_with("sketch:k=20,") ? 20 : 2400) << spec;
  }
}

// Rank 1 is honest, rank 0 answers with arbitrary bytes.
TEST(Sketch, HostileAnswersOfTheRootAreRefused) {
  constexpr std::size_t kElements = 100;
  constexpr std::size_t kLimit = 4096;
  const BucketLayout layout{.id = 0, .elements = kElements, .tensors = {}};
  std::mt19937 random(8);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::byte> first(random() % 6 * 4 + (random() % 8 == 0 ? 1 : 0));
    std::vector<std::byte> second(random() % 6 * 8 + (random() % 8 == 0 ? 4 : 0));
    for (auto& byte : first) byte = static_cast<std::byte>(random() % 3 == 0 ? random() % 100 : 0);
    for (auto& byte : second) byte = static_cast<std::byte>(random() % 2 == 0 ? random() : 0);
    const auto thrown = try_ranks(2, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(20), {});
      if (exchange.rank() == 0) {
        try {
          for (const auto& answer : {first, second}) {
            (void)through_root(exchange, 0, {}, kLimit, [&](const auto&) { return answer; });
          }
        } catch (const Error&) {  // rank 1 has given up
        }
        return;
      }
      SketchRounds rounds({.max_candidates = 4,
                           .k = 4,
                           .cells = SketchCells::f32,
                           .values = SketchValues::f32,
                           .collective = SketchCollective::root});
      CountSketch sketch({.rows = 1, .columns = 16});
      const std::vector<float> own(kElements);
      try {
        const auto candidates = rounds.find_candidates(exchange, {sketch, layout, {}});
        ASSERT_TRUE(std::ranges::is_sorted(candidates));
        ASSERT_TRUE(candidates.empty() || candidates.back() < kElements);
        const auto sums = rounds.find_largest(exchange, candidates, own);
        ASSERT_EQ(sums.indices.size(), sums.sums.size());
        for (const float value : sums.sums) ASSERT_TRUE(std::isfinite(value));
      } catch (const Error& error) {
        exchange.transport().abandon(error.what());
        throw;
      }
    });
    if (thrown[1]) {
      (void)error_text(thrown[1], ErrorCode::bad_frame);
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 1000);
}

// Rank 0 is honest; rank 1's payload has the wrong size.
TEST(Sketch, PayloadsOfTheWrongSizeAreRefusedByTheRoot) {
  const BucketLayout layout{.id = 0, .elements = 100, .tensors = {}};
  for (const std::size_t bytes : {0u, 60u, 63u}) {
    const auto thrown = try_ranks(2, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(20), {});
      SketchRounds rounds({.max_candidates = 4,
                           .k = 4,
                           .cells = SketchCells::f32,
                           .values = SketchValues::f32,
                           .collective = SketchCollective::root});
      CountSketch sketch({.rows = 1, .columns = 16});
      const std::vector<std::byte> payload(bytes);
      try {
        if (exchange.rank() == 0) {
          (void)rounds.find_candidates(exchange, {sketch, layout, {}});
        } else {
          (void)through_root(exchange, 0, payload, 64, {});
        }
      } catch (const Error& error) {
        exchange.transport().abandon(error.what());
        throw;
      }
    });
    EXPECT_THAT(error_text(thrown[0], ErrorCode::bad_frame), testing::HasSubstr("of rank 1"));
  }
}

TEST(Sketch, OptionsAreChecked) {
  for (const char* spec : {"sketch:k=0", "sketch:rows=2", "sketch:columns=8", "sketch:momentum=1",
                           "sketch:cells=f64", "sketch:collective=mail", "sketch:candidates=0",
                           "sketch:nominees=-1", "sketch:density=auto"}) {
    EXPECT_THROW((void)Spec::parse(spec), Error) << spec;
  }
  EXPECT_TRUE(Spec::parse("sketch:momentum=0.9").update());
  EXPECT_FALSE(Spec::parse("sketch").update());
  EXPECT_FALSE(Spec::parse("powersgd").update());
}

}  // namespace
}  // namespace thinreduce::sketch_test

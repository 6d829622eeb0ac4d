#include "thinreduce/methods/variance/variance.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/test_world.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/variance/payload.h"

namespace thinreduce::variance_test {
namespace {

struct PlainOptions {
  float alpha = 1.5F;
  float zeta = 0.999F;
  bool whole = false;
  bool keep = true;
  float tau = 0;
};

// The paper's algorithm, element by element.
class PlainRank {
 public:
  PlainRank(const PlainOptions& options, std::vector<VarianceTensor> tensors, std::size_t elements)
      : options_(options), tensors_(std::move(tensors)), r(elements), v(elements) {}

  // Returns the values that this rank sends; zeros elsewhere.
  std::vector<float> step(const std::vector<float>& gradient, const std::vector<float>& moment) {
    std::vector<float> sent(r.size());
    for (const VarianceTensor& tensor : tensors_) {
      std::vector<std::size_t> clear;
      float most = 0;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
        r[i] += gradient[i];
        v[i] += moment[i];
        if (r[i] * r[i] > options_.alpha * v[i] && std::abs(r[i]) > options_.tau) {
          clear.push_back(i);
          most = std::max(most, std::abs(r[i]));
        } else {
          v[i] *= options_.zeta;
        }
      }
      const float top = most > 0 ? std::exp2(std::floor(std::log2(most))) : 0;
      for (const std::size_t i : clear) send(i, top, sent);
    }
    return sent;
  }

 private:
  void send(std::size_t i, float top, std::vector<float>& sent) {
    if (options_.tau > 0) {
      const float tau = options_.tau;
      v[i] = std::max(v[i] - 2 * std::abs(r[i]) * tau + tau * tau, 0.0F);
      sent[i] = r[i] > 0 ? tau : -tau;
      r[i] -= sent[i];
      return;
    }
    float value = r[i];
    if (!options_.whole) {
      // The nearer power of two, by comparing the distances.
      const float low = std::exp2(std::floor(std::log2(std::abs(r[i]))));
      const float power = std::abs(r[i]) - low < 2 * low - std::abs(r[i]) ? low : 2 * low;
      value = std::copysign(std::min(power, top), r[i]);
      if (std::abs(value) < top * 0x1p-7F) {
        v[i] *= options_.zeta;
        return;
      }
    }
    sent[i] = value;
    r[i] = options_.whole || !options_.keep ? 0 : r[i] - value;
    v[i] = 0;
  }

  PlainOptions options_;
  std::vector<VarianceTensor> tensors_;

 public:
  std::vector<float> r;
  std::vector<float> v;
};

TEST(Variance, EqualsThePlainAlgorithm) {
  struct Case {
    std::string spec;
    PlainOptions plain;
  };
  const Case cases[] = {
      {"variance:collective=gather", {}},
      {"variance:alpha=1,zeta=0.9,index=28bit,collective=gather", {.alpha = 1, .zeta = 0.9F}},
      {"variance:residual=drop,collective=gather", {.keep = false}},
      {"variance:alpha=2,values=f32,collective=gather", {.alpha = 2, .whole = true}},
      {"variance:values=f32,index=28bit,collective=gather", {.whole = true}},
      {"variance:tau=0.7,collective=gather", {.tau = 0.7F}},
      {"variance:tau=0.7,index=28bit,collective=gather", {.tau = 0.7F}},
  };
  for (const Case& one : cases) {
    for (const int world : {1, 2, 4, 7}) {
      for (const std::size_t elements :
           {std::size_t{1}, std::size_t{5}, std::size_t{1009}, std::size_t{4099}}) {
        SCOPED_TRACE(testing::Message()
                     << one.spec << ", " << world << " ranks, " << elements << " elements");
        TestWorld ranks(world, one.spec, elements);
        std::vector<PlainRank> plain(
            static_cast<std::size_t>(world),
            PlainRank(one.plain, {{.offset = 0, .elements = elements}}, elements));
        for (unsigned step = 0; step < 4; ++step) {
          const auto gradients = normal_gradients(world, elements, step);
          ranks.second_moments = random_moments(world, elements, step);
          std::vector<float> expected(elements);
          for (std::size_t rank = 0; rank < plain.size(); ++rank) {
            const auto sent = plain[rank].step(gradients[rank], ranks.second_moments[rank]);
            const float share = 1.0F / static_cast<float>(world);
            for (std::size_t i = 0; i < elements; ++i) expected[i] += sent[i] * share;
          }
          ASSERT_EQ(ranks.mean(gradients), expected);
        }
        for (std::size_t rank = 0; rank < plain.size(); ++rank) {
          ASSERT_EQ(ranks.residual(rank), plain[rank].r);
          ASSERT_EQ(ranks.residual(rank, "squares"), plain[rank].v);
        }
      }
    }
  }
}

// Every tensor has its own exponent; raw tensors are left alone.
TEST(Variance, TensorsAreCodedApart) {
  BucketLayout layout{.id = 0, .elements = 130, .tensors = {}};
  layout.tensors = {{.name = "large", .shape = {6, 10}, .offset = 0},
                    {.name = "small", .shape = {6, 10}, .offset = 70}};
  TestWorld ranks(2, "variance", layout);
  auto gradients = normal_gradients(2, 130, 3);
  ranks.second_moments = PerRank(2, std::vector<float>(130, 0.0F));
  std::vector<float> expected(130);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 60; i < 70; ++i) gradients[rank][i] = 0;
    for (std::size_t i = 70; i < 130; ++i) gradients[rank][i] *= 1e-6F;
    PlainRank plain({}, {{0, 60}, {70, 60}}, 130);
    const auto sent = plain.step(gradients[rank], ranks.second_moments[rank]);
    for (std::size_t i = 0; i < 130; ++i) expected[i] += sent[i] * 0.5F;
  }
  EXPECT_EQ(ranks.mean(gradients), expected);
  EXPECT_GT(std::count_if(expected.begin() + 70, expected.end(), [](float x) { return x != 0; }),
            50);
  EXPECT_EQ(ranks.statistics[0].at("ambiguous"), 0);
  EXPECT_NEAR(ranks.statistics[0].at("sent") + ranks.statistics[0].at("too_small"), 1, 1e-12);
}

// On one fresh batch of B samples the rule r^2 > alpha v is the t-test of "the mean is 0" with
// t^2 = R (B - 1) / (B - R), R = r^2 / v: the element is sent if and only if t^2 is above what
// alpha gives in the index of R.
TEST(Variance, TheRuleIsATTest) {
  constexpr std::size_t kElements = 3001;
  for (const double batch : {4.0, 32.0}) {
    for (const double alpha : {1.0, 1.5, 2.0}) {
      std::mt19937 random(static_cast<unsigned>(batch));
      std::normal_distribution<double> normal;
      PerRank gradients(1, std::vector<float>(kElements));
      PerRank moments = gradients;
      std::vector<double> t_squared(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        const double shift = 0.4 * normal(random);
        double sum = 0, squares = 0;
        for (int z = 0; z < static_cast<int>(batch); ++z) {
          const double sample = shift + normal(random);
          sum += sample;
          squares += sample * sample;
        }
        // Student's t, from the samples' mean and their unbiased variance.
        const double mean = sum / batch;
        const double variance = (squares - batch * mean * mean) / (batch - 1);
        t_squared[i] = mean * mean / (variance / batch);
        gradients[0][i] = static_cast<float>(mean);
        moments[0][i] = static_cast<float>(squares / (batch * batch));
        const double ratio = mean * mean / (squares / (batch * batch));
        ASSERT_NEAR(t_squared[i], ratio * (batch - 1) / (batch - ratio), 1e-6 * (1 + t_squared[i]));
      }
      TestWorld rank(1, "variance:values=f32,alpha=" + std::to_string(alpha), kElements);
      rank.second_moments = moments;
      const auto mean = rank.mean(gradients);
      const double critical = alpha * (batch - 1) / (batch - alpha);
      for (std::size_t i = 0; i < kElements; ++i) {
        if (std::abs(t_squared[i] / critical - 1) < 1e-5) continue;  // float rounding may decide
        ASSERT_EQ(mean[i] != 0, t_squared[i] > critical) << i;
      }
    }
  }
}

// The same gradient in every sample: r^2 / v = T B after T steps with zeta = 1. So with alpha just
// below T B an element is sent in step T, and not before.
TEST(Variance, AConstantGradientIsSentAfterAlphaByBSteps) {
  constexpr float kBatch = 8;
  for (const int steps : {1, 2, 5, 12}) {
    const double alpha = steps * static_cast<double>(kBatch) - 0.5;
    TestWorld rank(1, "variance:values=f32,zeta=1,alpha=" + std::to_string(alpha), 10);
    rank.second_moments = PerRank(1, std::vector<float>(10, 9.0F / kBatch));
    for (int step = 1; step <= steps; ++step) {
      const auto mean = rank.mean(PerRank(1, std::vector<float>(10, 3.0F)));
      const float expected = step == steps ? 3.0F * static_cast<float>(steps) : 0.0F;
      ASSERT_EQ(mean, std::vector<float>(10, expected)) << step << " of " << steps;
    }
  }
}

// Pure noise, fresh: R is a chi-square of one degree of freedom when v is the true variance.
TEST(Variance, FiringRatesOnNoise) {
  constexpr std::size_t kElements = 200000;
  const std::pair<const char*, double> rates[] = {
      {"variance:values=f32,alpha=1", 0.3173},
      {"variance:values=f32,alpha=1.5", 0.2207},
      {"variance:values=f32,alpha=2", 0.1573},
  };
  const auto gradients = normal_gradients(1, kElements, 11);
  for (const auto& [spec, expected] : rates) {
    TestWorld rank(1, spec, kElements);
    rank.second_moments = PerRank(1, std::vector<float>(kElements, 1.0F));
    (void)rank.mean(gradients);
    // Four standard deviations of a fraction of 200,000.
    EXPECT_NEAR(rank.statistics[0].at("sent"), expected, 0.0042) << spec;
    EXPECT_NEAR(rank.statistics[0].at("ambiguous"), 1 - rank.statistics[0].at("sent"), 1e-12);
  }
}

// A tensor with a quarter of the pairs uses a quarter of alpha, wherever it lies in its bucket and
// however many elements a pair has. P(R > 0.5) = 0.4795, P(R > 2) = 0.1573.
TEST(Variance, NarrowTensorsSendWhatIsLessSure) {
  constexpr std::size_t kSize = 50000;
  BucketLayout layout{.id = 0, .elements = 3 * kSize, .tensors = {}};
  layout.tensors = {{.name = "wide", .shape = {80, 100, 1, 6}, .offset = 0},
                    {.name = "narrow", .shape = {50, 40, 5, 5}, .offset = kSize},
                    {.name = "linear", .shape = {50, 1000}, .offset = 2 * kSize}};
  const auto gradients = normal_gradients(1, layout.elements, 12);
  for (const auto& [full, narrow] : {std::pair{0, 0.1573}, {2000, 0.1573}, {8000, 0.4795}}) {
    TestWorld rank(1, fmt::format("variance:values=f32,alpha=2,full={}", full), layout);
    rank.second_moments = PerRank(1, std::vector<float>(layout.elements, 1.0F));
    const auto mean = rank.mean(gradients);
    const auto sent = [&](std::size_t begin, std::size_t size) {
      const auto values = std::span(mean).subspan(begin, size);
      const auto count =
          std::count_if(values.begin(), values.end(), [](float x) { return x != 0; });
      return static_cast<double>(count) / static_cast<double>(size);
    };
    TestWorld without(1, fmt::format("variance:alpha=2,full={}", full), layout);
    (void)without.mean(gradients);
    // A first step without second moments sends only raw tensors.
    EXPECT_EQ(without.statistics[0].at("sent"), 2000.0 / static_cast<double>(layout.elements));
    // Four standard deviations of a fraction of 48,000.
    EXPECT_NEAR(sent(0, 48000), 0.1573, 0.0067) << full;
    EXPECT_NEAR(sent(kSize, kSize), narrow, 0.0092) << full;
    EXPECT_NEAR(sent(2 * kSize, kSize), 0.1573, 0.0067) << full;
  }
}

// Without a second moment a step's gradient is one sample, or `micro` equal ones.
TEST(Variance, MicroBatchesServeAsSamples) {
  const auto gradients = normal_gradients(2, 500, 2);
  for (const int micro : {1, 4}) {
    const std::string spec = "variance:alpha=1.9,micro=" + std::to_string(micro);
    TestWorld without(2, spec, 500);
    TestWorld with(2, spec, 500);
    with.second_moments = gradients;
    for (auto& moment : with.second_moments) {
      for (auto& value : moment) value = value * value * (1.0F / static_cast<float>(micro));
    }
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(without.mean(gradients), with.mean(gradients));
      EXPECT_EQ(without.statistics[0].at("per_sample"), 0);
      EXPECT_EQ(with.statistics[0].at("per_sample"), 1);
      // One sample alone is never unambiguous at alpha >= 1; two equal ones are at 1.9.
      if (micro == 1 && step == 0) {
        EXPECT_EQ(without.statistics[0].at("sent"), 0);
      }
    }
  }
}

TEST(Variance, StatisticsTellHowLongElementsWaited) {
  TestWorld rank(1, "variance:values=f32,zeta=1,alpha=4.5", 100);
  PerRank gradient(1, std::vector<float>(100, 1.0F));
  // R = steps * B with B = 5 for the first ten elements, 1 for fifty, and 0.1 for the others.
  rank.second_moments = PerRank(1, std::vector<float>(100, 10.0F));
  for (std::size_t i = 0; i < 60; ++i) rank.second_moments[0][i] = i < 10 ? 0.2F : 1.0F;
  for (int step = 0; step < 10; ++step) {
    (void)rank.mean(gradient);
    const auto& statistics = rank.statistics[0];
    const bool fifth = step % 5 == 4;  // R = 5 after five steps, the last four of them waiting
    EXPECT_EQ(statistics.at("waited_000"), 0.1);
    EXPECT_EQ(statistics.at("waited_004"), fifth ? 0.5 : 0.0);
    EXPECT_EQ(statistics.at("sent"), fifth ? 0.6 : 0.1);
    double all = 0;
    for (const auto& [name, value] : statistics) {
      if (name.starts_with("waited_")) all += value;
    }
    EXPECT_NEAR(all, statistics.at("sent"), 1e-12);
  }
}

TEST(Variance, NothingToSendIsAnEmptyFrame) {
  TestWorld ranks(3, "variance", 5000);
  EXPECT_EQ(ranks.mean(PerRank(3, std::vector<float>(5000))), std::vector<float>(5000));
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, 2 * kFrameHeaderBytes);
  EXPECT_EQ(ranks.statistics[0].at("sent"), 0);
}

TEST(Variance, EmptyBucket) {
  TestWorld ranks(2, "variance", 0);
  EXPECT_TRUE(ranks.mean(PerRank(2)).empty());
}

TEST(Variance, ATensorThat28BitsCannotIndexIsRefused) {
  const BucketLayout layout{
      .id = 7,
      .elements = kMaxWordElements + 1,
      .tensors = {{.name = "huge", .shape = {1, static_cast<std::int64_t>(kMaxWordElements) + 1}}}};
  try {
    (void)Spec::parse("variance:index=28bit").make({.layout = layout});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("huge"));
    EXPECT_THAT(error.what(), testing::HasSubstr("index=compact"));
  }
}

// Rank 1 is lost: rank 0 keeps its whole gradient, and its squares decay as if nothing was sent.
TEST(Variance, FailedExchangeKeepsTheGradient) {
  TestWorld ranks(2, "variance:zeta=0.5", 1000);
  const auto gradients = normal_gradients(2, 1000, 5);
  ranks.second_moments = random_moments(2, 1000, 5);
  ranks.transport(1).abandon("this rank leaves");
  (void)ranks.step(gradients);
  ASSERT_NE(ranks.thrown[0], nullptr);
  EXPECT_EQ(ranks.residual(0), gradients[0]);
  auto halves = ranks.second_moments[0];
  for (auto& value : halves) value *= 0.5F;
  EXPECT_EQ(ranks.residual(0, "squares"), halves);
}

// A run that is saved and loaded in the middle continues with the same bits.
TEST(Variance, StateResumesToTheSameBits) {
  for (const char* spec : {"variance", "variance:tau=0.5"}) {
    TestWorld first(1, spec, 777);
    TestWorld second(1, spec, 777);
    for (unsigned step = 0; step < 8; ++step) {
      if (step == 4) second.load(0, first.saved(0));
      const auto gradients = normal_gradients(1, 777, step);
      first.second_moments = second.second_moments = random_moments(1, 777, step);
      const auto expected = first.mean(gradients);
      if (step < 4) continue;
      EXPECT_EQ(second.mean(gradients), expected);
      EXPECT_EQ(second.statistics, first.statistics);
    }
  }
}

}  // namespace
}  // namespace thinreduce::variance_test

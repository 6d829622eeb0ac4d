#include "thinreduce/engine/session.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/throttle.h"

namespace thinreduce::session_test {
namespace {

using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(All, Sessions, testing::ValuesIn(every_method_and_world()),
                         session_case_name);

TEST_P(Sessions, AllRanksHoldTheSameBitsAndRawTensorsAreExact) {
  const BucketLayout layout = mixed_layout(5);
  std::mutex mutex;
  std::vector<std::vector<float>> ends;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport),
                    {.spec = spec(), .check_replicas_every = 1, .momentum_inside_ok = true});
    const auto bucket = session.add_bucket(layout);
    std::vector<float> values;
    for (std::uint64_t step = 0; step < steps(5); ++step) {
      values = gradient(layout.elements, session.rank(), step);
      const Report report = session.submit(bucket, values).get();
      EXPECT_EQ(report.step, step + 1);
      EXPECT_EQ(report.elements, layout.elements);
      if (world() > 1) {
        EXPECT_GT(report.bytes_sent, 0U);
      }
    }
    const std::lock_guard lock(mutex);
    ends.push_back(values);
  });
  // Uncompressed gradients get the method's momentum, if it has any, or become signs.
  const Update update = Spec::parse(spec()).update().value_or(Update{});
  std::vector<double> mean(layout.elements);
  for (std::uint64_t step = 0; step < steps(5); ++step) {
    const auto fresh = true_mean(layout.elements, world(), step);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = update.momentum * mean[i] + fresh[i];
  }
  if (update.signs) {
    std::ranges::transform(mean, mean.begin(), [](double v) { return (v > 0) - (v < 0); });
  }
  for (const auto& values : ends) {
    EXPECT_EQ(std::memcmp(values.data(), ends[0].data(), values.size() * sizeof(float)), 0);
  }
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.name != "conv.bias" && tensor.name != "small.weight") continue;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
      EXPECT_NEAR(ends[0][i], mean[i], 1e-6) << tensor.name;
    }
  }
}

TEST(Session, BucketsAreReducedInOrderWhileTheCallerGoesOn) {
  run_ranks(4, [](std::unique_ptr<Transport> inner) {
    auto transport = throttle(std::move(inner), Link::parse("40mbit"));
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<std::vector<float>> buckets;
    for (std::uint64_t i = 0; i < 5; ++i) buckets.push_back(gradient(100'000, session.rank(), i));
    std::vector<std::future<Report>> done;
    for (std::uint32_t i = 0; i < 5; ++i) {
      const auto bucket = session.add_bucket({.id = i, .elements = 100'000, .tensors = {}});
      done.push_back(session.submit(bucket, buckets[i]));
    }
    // The five buckets need 0.6 s on this link; submitting did not wait for them.
    EXPECT_EQ(done.back().wait_for(0s), std::future_status::timeout);
    const Report all = session.finish_step();
    for (auto& one : done) EXPECT_EQ(one.wait_for(0s), std::future_status::ready);
    EXPECT_EQ(all.buckets, 5U);
    EXPECT_EQ(all.elements, 500'000U);
    EXPECT_GT(all.stages.wire, 0.0);
    for (std::size_t i = 0; i < 5; ++i) {
      done[i].get();
      const auto mean = true_mean(100'000, 4, i);
      EXPECT_NEAR(buckets[i][77], mean[77], 1e-6);
    }
  });
}

TEST(Session, TheSameBucketTwiceInTheQueue) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk:density=0.2"});
    std::vector<std::vector<float>> steps;
    std::vector<std::future<Report>> done;
    for (std::uint64_t step = 0; step < 4; ++step) {
      steps.push_back(gradient(3001, session.rank(), step));
    }
    const auto bucket = session.add_bucket({.id = 9, .elements = 3001, .tensors = {}});
    for (auto& values : steps) done.push_back(session.submit(bucket, values));
    for (std::uint64_t step = 0; step < 4; ++step) EXPECT_EQ(done[step].get().step, step + 1);
  });
}

TEST(Session, WarmupTravelsUncompressed) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk:density=0.01", .warmup_steps = 2});
    for (std::uint64_t step = 0; step < 3; ++step) {
      auto values = gradient(10'000, session.rank(), step);
      const Report report = session.reduce(0, values);
      const auto mean = true_mean(10'000, 2, step);
      if (step < 2) {
        EXPECT_EQ(report.payload_bytes, 40'000U);
        EXPECT_NEAR(values[4321], mean[4321], 1e-6);
      } else {
        EXPECT_LT(report.payload_bytes, 1000U);
      }
    }
  });
}

// During warm-up, in buckets too small to compress and in raw tensors, the update has the same
// momentum as that of the method; also across a save in the middle of the warm-up.
TEST(Session, UncompressedUpdatesHaveTheMethodsMomentum) {
  const Folder folder;
  const BucketLayout layout = mixed_layout(0);
  const SessionOptions options{
      .spec = "sketch:momentum=0.5", .warmup_steps = 3, .momentum_inside_ok = true};
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    auto session = std::make_unique<Session>(std::move(transport), options);
    const auto bucket = session->add_bucket(layout);
    std::vector<double> big(layout.elements);
    std::vector<double> small(100);
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 2 || step == 5) {
        session->save(state_path(folder, session->rank()));
        auto lost = gradient(layout.elements, session->rank(), 77);
        session->submit(bucket, lost).get();
        session->load(state_path(folder, session->rank()));
      }
      auto values = gradient(layout.elements, session->rank(), step);
      auto few = gradient(100, session->rank(), step);
      session->submit(bucket, values).get();
      session->reduce(1, few);
      const auto mean = true_mean(layout.elements, 2, step);
      const auto small_mean = true_mean(100, 2, step);
      for (std::size_t i = 0; i < big.size(); ++i) big[i] = 0.5 * big[i] + mean[i];
      for (std::size_t i = 0; i < small.size(); ++i) {
        small[i] = 0.5 * small[i] + small_mean[i];
        ASSERT_NEAR(few[i], small[i], 1e-6) << "step " << step;
      }
      for (const Tensor& tensor : layout.tensors) {
        const bool raw = tensor.name == "conv.bias" || tensor.name == "small.weight";
        if (!raw && step >= 3) continue;
        for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
          ASSERT_NEAR(values[i], big[i], 1e-6) << tensor.name << " at step " << step;
        }
      }
    }
  });
}

double process_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Session, AnIdleEngineUsesNoProcessor) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(1000);
    session.reduce(0, values);
    if (session.rank() == 0) {
      const double before = process_seconds();
      std::this_thread::sleep_for(500ms);
      EXPECT_LT(process_seconds() - before, 0.02);
    } else {
      std::this_thread::sleep_for(600ms);
    }
  });
}

TEST(Session, BucketsMayHaveSpecsOfTheirOwn) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    BucketLayout layout{.id = 0, .elements = 5000, .tensors = {}, .spec = "topk:density=0.01"};
    auto values = gradient(layout.elements, session.rank(), 0);
    const auto reduce = [&] { return session.submit(session.add_bucket(layout), values).get(); };
    EXPECT_LT(reduce().payload_bytes, 1000U);
    layout.id = 1;
    layout.spec = "";
    EXPECT_EQ(reduce().payload_bytes, 20000U);

    layout.id = 2;
    layout.spec = "tpok";
    thrown_text(ErrorCode::bad_spec, reduce);
    layout.spec = "sketch:momentum=0.9";
    thrown_text(ErrorCode::bad_spec, reduce);
    // All ranks must choose alike; then the session goes on.
    layout.spec = session.rank() == 0 ? "dqsg" : "topk";
    thrown_text(ErrorCode::mismatch, reduce);
    layout.spec = "dqsg";
    EXPECT_GT(reduce().payload_bytes, 0U);
  });
}

}  // namespace
}  // namespace thinreduce::session_test

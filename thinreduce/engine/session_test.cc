#include "thinreduce/engine/session.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>

#include "tests/ranks.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/registry.h"
#include "thinreduce/transport/throttle.h"

namespace thinreduce {
namespace {

using namespace std::chrono_literals;

std::vector<float> gradient(std::size_t size, int rank, std::uint64_t step) {
  std::vector<float> values(size);
  std::uint64_t state = static_cast<std::uint64_t>(rank) * 1000003 + step * 7919 + 1;
  for (auto& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) / 2147483648.0F;
  }
  return values;
}

std::vector<double> true_mean(std::size_t size, int world, std::uint64_t step) {
  std::vector<double> mean(size);
  for (int rank = 0; rank < world; ++rank) {
    const auto values = gradient(size, rank, step);
    for (std::size_t i = 0; i < size; ++i) mean[i] += static_cast<double>(values[i]) / world;
  }
  return mean;
}

// conv weight, bias, matrix, a matrix too small to compress
BucketLayout mixed_layout(std::uint32_t id) {
  BucketLayout layout{.id = id, .elements = 0, .tensors = {}};
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    Tensor tensor{.name = std::move(name), .shape = std::move(shape), .offset = layout.elements};
    layout.elements += tensor.elements();
    layout.tensors.push_back(std::move(tensor));
  };
  add("conv.weight", {16, 8, 3, 3});
  add("conv.bias", {16});
  add("fc.weight", {40, 101});
  add("small.weight", {3, 5});
  return layout;
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "thinreduceXXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

std::filesystem::path state_path(const Folder& folder, int rank) {
  return folder.path / ("rank" + std::to_string(rank) + ".state");
}

class Sessions : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  [[nodiscard]] std::string spec() const { return std::get<0>(GetParam()); }
  [[nodiscard]] int world() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    All, Sessions,
    testing::Combine(testing::Values("fp32", "bf16", "gradiveq:warmup=2", "gradiveq:warmup=2+qsgd",
                                     "gradiveq:warmup=2+dqsg", "fft", "dqsg", "dqsg:travel=gather",
                                     "ndqsg", "sketch", "sketch:momentum=0", "topk:density=0.1",
                                     "qsgd", "terngrad", "powersgd", "variance",
                                     "variance:tau=0.1,index=28bit"),
                     testing::Values(1, 2, 3, 4)));

TEST_P(Sessions, AllRanksHoldTheSameBitsAndRawTensorsAreExact) {
  const BucketLayout layout = mixed_layout(5);
  std::mutex mutex;
  std::vector<std::vector<float>> ends;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport),
                    {.spec = spec(), .check_replicas_every = 1, .momentum_inside_ok = true});
    std::vector<float> values;
    for (std::uint64_t step = 0; step < 5; ++step) {
      values = gradient(layout.elements, session.rank(), step);
      const Report report = session.submit(layout, values).get();
      EXPECT_EQ(report.step, step + 1);
      EXPECT_EQ(report.elements, layout.elements);
      if (world() > 1) {
        EXPECT_GT(report.bytes_sent, 0U);
      }
    }
    const std::lock_guard lock(mutex);
    ends.push_back(values);
  });
  // What travels uncompressed gets the method's momentum, if it has any.
  const double momentum = Spec::parse(spec()).momentum();
  std::vector<double> mean(layout.elements);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto fresh = true_mean(layout.elements, world(), step);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = momentum * mean[i] + fresh[i];
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

TEST_P(Sessions, ResumedStateContinuesToTheSameBits) {
  const Folder folder;
  const BucketLayout layout = mixed_layout(0);
  std::vector<std::vector<float>> straight(static_cast<std::size_t>(world()));
  std::vector<std::vector<float>> resumed(static_cast<std::size_t>(world()));
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 3) session.save(state_path(folder, session.rank()));
      straight[rank] = gradient(layout.elements, session.rank(), step);
      session.submit(layout, straight[rank]).get();
    }
  });
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    session.load(state_path(folder, session.rank()));
    for (std::uint64_t step = 3; step < 6; ++step) {
      resumed[rank] = gradient(layout.elements, session.rank(), step);
      EXPECT_EQ(session.submit(layout, resumed[rank]).get().step, step + 1);
    }
  });
  EXPECT_EQ(straight, resumed);
}

TEST_P(Sessions, LoadingIntoARunningSessionRewindsIt) {
  const Folder folder;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    auto first = gradient(5000, session.rank(), 0);
    session.reduce(1, first);
    session.save(state_path(folder, session.rank()));
    auto once = gradient(5000, session.rank(), 1);
    session.reduce(1, once);
    session.load(state_path(folder, session.rank()));
    auto again = gradient(5000, session.rank(), 1);
    EXPECT_EQ(session.reduce(1, again).step, 2U);
    EXPECT_EQ(once, again);
  });
}

TEST(Session, NanIsNamedOnAllRanksAndNothingIsTouched) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk:density=0.01"});
    auto good = gradient(4000, session.rank(), 0);
    session.reduce(2, good);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      auto values = gradient(4000, session.rank(), 1);
      if (session.rank() == 1) values[1234] = bad;
      const auto before = values;
      const auto text = thrown_text(ErrorCode::bad_input, [&] { session.reduce(2, values); });
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("bucket 2"), std::string::npos) << text;
      EXPECT_NE(text.find("index 1234"), std::string::npos) << text;
      EXPECT_EQ(std::memcmp(values.data(), before.data(), values.size() * sizeof(float)), 0);
    }
    // The session goes on, with the step it would have had.
    auto next = gradient(4000, session.rank(), 1);
    EXPECT_EQ(session.reduce(2, next).step, 2U);
  });
}

TEST(Session, ABadSecondMomentIsNamedOnAllRanksByMethodsThatReadIt) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "variance"});
    const BucketLayout layout{.id = 2, .elements = 4000, .tensors = {}};
    auto good = gradient(4000, session.rank(), 0);
    std::vector<float> moment(4000, 0.01F);
    EXPECT_EQ(session.submit(layout, good, moment).get().statistics.at("per_sample"), 1);
    for (const float bad :
         {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto values = gradient(4000, session.rank(), 1);
      if (session.rank() == 1) moment[1234] = bad;
      const auto before = values;
      const auto text =
          thrown_text(ErrorCode::bad_input, [&] { session.submit(layout, values, moment).get(); });
      EXPECT_NE(text.find("second moment of rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("index 1234"), std::string::npos) << text;
      EXPECT_EQ(values, before);
    }
    // One rank without is no disagreement: it only decides what that rank itself sends.
    moment[1234] = 0.01F;
    auto next = gradient(4000, session.rank(), 1);
    const std::span<const float> none;
    EXPECT_EQ(session.submit(layout, next, session.rank() == 1 ? none : moment).get().step, 2U);
  });
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto values = gradient(4000, session.rank(), 0);
    const std::vector<float> unread(4000, -1.0F);
    EXPECT_NO_THROW(
        session.submit({.id = 2, .elements = 4000, .tensors = {}}, values, unread).get());
  });
}

TEST(Session, NanInALargeUncompressedBucketIsNamedOnAllRanks) {
  constexpr std::size_t kSize = 300'007;  // over 1 MiB: looked for while the sum is made
  for (const int world : {1, 3}) {
    run_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = "topk:density=0.01", .warmup_steps = 2});
      for (const std::size_t place : {std::size_t{0}, std::size_t{123'456}, kSize - 1}) {
        auto values = gradient(kSize, session.rank(), 0);
        if (session.rank() == world - 1) {
          values[place] = std::numeric_limits<float>::infinity();
          values[kSize - 1] = std::numeric_limits<float>::quiet_NaN();
        }
        const auto text = thrown_text(ErrorCode::bad_input, [&] { session.reduce(2, values); });
        EXPECT_NE(text.find(fmt::format("rank {} is NaN or Inf at index {};", world - 1, place)),
                  std::string::npos)
            << text;
      }
      auto next = gradient(kSize, session.rank(), 1);
      EXPECT_EQ(session.reduce(2, next).step, 1U);
    });
  }
}

TEST(Session, DifferentSizesAreNamedOnAllRanksAndCanBeMended) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> wrong(session.rank() == 2 ? 1001 : 1000, 1.0F);
    const auto text = thrown_text(ErrorCode::mismatch, [&] { session.reduce(0, wrong); });
    EXPECT_NE(text.find("1000 on rank 0 and 1001 on rank 2"), std::string::npos) << text;
    std::vector<float> right(1000, static_cast<float>(session.rank()));
    session.reduce(0, right);
    EXPECT_EQ(right[999], 1.0F);
    // From now on bucket 0 has 1000 elements.
    std::vector<float> longer(1001, 1.0F);
    const auto changed = thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, longer); });
    EXPECT_NE(changed.find("1000 elements then, 1001 now"), std::string::npos) << changed;
    session.reduce(0, right);
  });
}

TEST(Session, DifferentOrderIsNamed) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(10);
    const auto text = thrown_text(ErrorCode::mismatch, [&] {
      session.reduce(static_cast<std::uint32_t>(session.rank()), values);
    });
    EXPECT_NE(text.find("same order"), std::string::npos) << text;
  });
}

TEST(Session, DifferentSpecsAreNamedOnAllRanks) {
  const auto thrown = try_ranks(3, [](std::unique_ptr<Transport> transport) {
    const bool odd = transport->rank() == 1;
    Session session(std::move(transport), {.spec = odd ? "topk:density=0.5" : "topk"});
  });
  for (const auto& one : thrown) {
    const auto text = error_text(one, ErrorCode::mismatch);
    EXPECT_NE(text.find("topk:density=0.01"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 runs 'topk:density=0.5"), std::string::npos) << text;
  }
}

TEST(Session, DriftedReplicasAreNoticed) {
  const Folder folder;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(2000, 1.0F);
    session.reduce(0, values);
    if (session.rank() == 0) session.save(state_path(folder, 0));
    session.reduce(0, values);
    if (session.rank() == 1) session.save(state_path(folder, 1));
  });
  // The two ranks resume from different steps.
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    session.load(state_path(folder, session.rank()));
    std::vector<float> values(2000, 1.0F);
    const auto text = thrown_text(ErrorCode::mismatch, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("step is 1 on rank 0 and 2 on rank 1"), std::string::npos) << text;
  });
}

TEST(Session, BucketsAreReducedInOrderWhileTheCallerGoesOn) {
  run_ranks(4, [](std::unique_ptr<Transport> inner) {
    auto transport = throttle(std::move(inner), Link::parse("40mbit"));
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<std::vector<float>> buckets;
    for (std::uint64_t i = 0; i < 5; ++i) buckets.push_back(gradient(100'000, session.rank(), i));
    std::vector<std::future<Report>> done;
    for (std::uint32_t i = 0; i < 5; ++i) {
      done.push_back(session.submit({.id = i, .elements = 100'000, .tensors = {}}, buckets[i]));
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
    for (auto& values : steps) {
      done.push_back(session.submit({.id = 9, .elements = 3001, .tensors = {}}, values));
    }
    for (std::uint64_t step = 0; step < 4; ++step) EXPECT_EQ(done[step].get().step, step + 1);
  });
}

TEST(Session, ALostRankEndsAllOthersAndEveryLaterCallSaysSo) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = 20s});
    std::vector<float> values(50'000);
    session.reduce(0, values);
    if (session.rank() == 1) return;  // leaves in the middle of training
    auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_THROW(session.finish_step(), Error);
  });
}

TEST(Session, ASilentRankIsATimeoutThatNamesIt) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = Seconds(0.2)});
    std::vector<float> values(50'000);
    if (session.rank() == 1) {
      std::this_thread::sleep_for(1s);
      return;
    }
    const auto text = thrown_text(ErrorCode::timeout, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
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

TEST(Session, ABucketThatDoesNotFitItsTensorsIsRefused) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(10);
    const auto text_of = [&](std::vector<Tensor> tensors, std::size_t elements) {
      const BucketLayout layout{.id = 3, .elements = elements, .tensors = std::move(tensors)};
      return thrown_text(ErrorCode::bad_input, [&] { (void)session.submit(layout, values); });
    };
    EXPECT_NE(text_of({}, 11).find("10 values were given for 11"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {3, 4}}}, 10).find("'w'"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {3, 3}}}, 10).find("9 elements"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {-1, 10}}}, 10).find("-1"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {1LL << 40, 1LL << 40}}}, 10).find("'w'"),
              std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {10}, .offset = 1}}, 10).find("offset 1"),
              std::string::npos);
    // Nothing at all is fine.
    std::vector<float> nothing;
    EXPECT_EQ(session.reduce(4, nothing).elements, 0U);
  });
}

TEST(Session, StateFilesThatDoNotFitAreRefused) {
  const Folder folder;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto values = gradient(3000, session.rank(), 0);
    session.reduce(0, values);
    session.save(state_path(folder, session.rank()));
  });
  const auto good = state_path(folder, 0);
  const auto load = [&](int world, const std::string& spec, const std::filesystem::path& file) {
    auto thrown = try_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = spec});
      if (session.rank() == 0) session.load(file);
    });
    return thrown[0];
  };
  EXPECT_EQ(load(2, "topk", good), nullptr);
  EXPECT_NE(error_text(load(3, "topk", good), ErrorCode::bad_state).find("world of 2"),
            std::string::npos);
  EXPECT_NE(error_text(load(2, "fp32", good), ErrorCode::bad_state).find("topk"),
            std::string::npos);
  EXPECT_NE(error_text(load(2, "topk", state_path(folder, 1)), ErrorCode::bad_state)
                .find("belongs to rank 1"),
            std::string::npos);
  EXPECT_NE(
      error_text(load(2, "topk", folder.path / "missing"), ErrorCode::unavailable).find("missing"),
      std::string::npos);
  error_text(load(2, "topk", folder.path), ErrorCode::unavailable);
  // Cut anywhere, or altered anywhere.
  std::ifstream in(good, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto bad = folder.path / "bad";
  for (std::size_t at = 0; at < bytes.size(); at += at < 200 ? 1 : 997) {
    std::ofstream(bad, std::ios::binary) << bytes.substr(0, at);
    error_text(load(2, "topk", bad), ErrorCode::bad_state);
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    std::ofstream(bad, std::ios::binary) << altered;
    error_text(load(2, "topk", bad), ErrorCode::bad_state);
  }
}

TEST(Session, AnUnwritableStateFileIsNamed) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    const auto text = thrown_text(ErrorCode::unavailable,
                                  [&] { session.save("/nonexistent/folder/rank0.state"); });
    EXPECT_NE(text.find("/nonexistent/folder/rank0.state"), std::string::npos) << text;
  });
}

TEST(Session, UnknownSpecsAreRefusedWithWhatExists) {
  const auto refused = [](const std::string& spec) {
    auto thrown = try_ranks(1, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = spec});
    });
    return error_text(thrown[0], ErrorCode::bad_spec);
  };
  EXPECT_NE(refused("topq").find("fp32, bf16, "), std::string::npos);
  EXPECT_NE(refused("topk:k=3").find("density"), std::string::npos);
  EXPECT_NE(refused("topk:density=2").find("not '2'"), std::string::npos);
}

// An update with momentum inside, given to an optimizer with momentum, would be a silent mistake.
TEST(Session, MomentumInsideMustBeAcknowledged) {
  const auto open = [](const SessionOptions& options) {
    auto ranks = connect_threads(1);
    Session session(std::move(ranks[0]), options);
  };
  const auto text =
      thrown_text(ErrorCode::bad_spec, [&] { open({.spec = "sketch:momentum=0.8"}); });
  EXPECT_NE(text.find("momentum_inside_ok"), std::string::npos) << text;
  EXPECT_NE(text.find("sketch:momentum=0"), std::string::npos) << text;
  EXPECT_NO_THROW(open({.spec = "sketch", .momentum_inside_ok = true}));
  EXPECT_NO_THROW(open({.spec = "sketch:momentum=0"}));
  EXPECT_NO_THROW(open({.spec = "powersgd"}));
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
    std::vector<double> big(layout.elements);
    std::vector<double> small(100);
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 2 || step == 5) {
        session->save(state_path(folder, session->rank()));
        auto lost = gradient(layout.elements, session->rank(), 77);
        session->submit(layout, lost).get();
        session->load(state_path(folder, session->rank()));
      }
      auto values = gradient(layout.elements, session->rank(), step);
      auto few = gradient(100, session->rank(), step);
      session->submit(layout, values).get();
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
    EXPECT_LT(session.submit(layout, values).get().payload_bytes, 1000U);
    layout.id = 1;
    layout.spec = "";
    EXPECT_EQ(session.submit(layout, values).get().payload_bytes, 20000U);

    layout.id = 2;
    layout.spec = "tpok";
    thrown_text(ErrorCode::bad_spec, [&] { session.submit(layout, values).get(); });
    layout.spec = "sketch";
    thrown_text(ErrorCode::bad_spec, [&] { session.submit(layout, values).get(); });
    // All ranks must choose alike; then the session goes on.
    layout.spec = session.rank() == 0 ? "dqsg" : "topk";
    thrown_text(ErrorCode::mismatch, [&] { session.submit(layout, values).get(); });
    layout.spec = "dqsg";
    EXPECT_GT(session.submit(layout, values).get().payload_bytes, 0U);
  });
}

TEST(Session, AbandonEndsItOnAllRanks) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = 60s});
    std::vector<float> values(5000);
    if (session.rank() == 1) {
      session.abandon("enough");
      const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
      EXPECT_EQ(text, "rank 1 gave up: enough");
      return;
    }
    const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1 gave up: enough"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace thinreduce

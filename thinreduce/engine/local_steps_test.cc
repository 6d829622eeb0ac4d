// Laws of local steps: same bits on all ranks, nothing lost, resumed to the same bits.
#include "thinreduce/engine/local_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/law_specs.h"
#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/error.h"

namespace thinreduce::local_steps_test {
namespace {

using testing::HasSubstr;
using Floats = std::vector<float>;

std::vector<Tensor> tensors() {
  return {{"embedding", {40, 101}}, {"conv", {16, 8, 3, 3}}, {"bias", {16}}, {"out", {50, 31}}};
}
std::size_t elements() {
  std::size_t sum = 0;
  for (const Tensor& tensor : tensors()) sum += tensor.elements();
  return sum;
}

// One rank's training: its parameters, tensor by tensor, change in every local step by numbers that
// follow from rank and step alone.
class Training {
 public:
  Training(std::unique_ptr<Transport> transport, const std::string& spec,
           const LocalStepsOptions& options)
      : session_(std::move(transport), {.spec = spec, .min_elements = 100}),
        sync(session_, options, tensors()) {
    for (const Tensor& tensor : tensors()) parameters.push_back(gradient(tensor.elements(), 99, 0));
    for (std::size_t f = 0; f < sync.fragments(); ++f) sync.set_anchor(f, gather(f));
  }

  [[nodiscard]] Floats gather(std::size_t fragment) const {
    Floats values;
    for (const std::size_t i : sync.members(fragment)) {
      values.insert(values.end(), parameters[i].begin(), parameters[i].end());
    }
    return values;
  }
  void scatter(std::size_t fragment, const Floats& values) {
    const float* next = values.data();
    for (const std::size_t i : sync.members(fragment)) {
      std::copy_n(next, parameters[i].size(), parameters[i].begin());
      next += parameters[i].size();
    }
  }

  // Does a local step by `amount`, and the exchanges due after it.
  void step(float amount = 0.01F) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto change = gradient(parameters[i].size(), session_.rank(), sync.step() * 10 + i);
      for (std::size_t k = 0; k < change.size(); ++k) parameters[i][k] += amount * change[k];
    }
    exchange();
  }
  void exchange() {
    const auto due = sync.advance();
    for (const std::size_t f : due.start) sync.start(f, gather(f));
    for (const std::size_t f : due.apply) {
      Floats values = gather(f);
      sync.apply(f, values);
      scatter(f, values);
    }
  }

  [[nodiscard]] std::vector<Floats> anchors() const {
    std::vector<Floats> all;
    for (std::size_t f = 0; f < sync.fragments(); ++f) {
      all.emplace_back(sync.anchor(f).begin(), sync.anchor(f).end());
    }
    return all;
  }
  Session& session() { return session_; }

 private:
  Session session_;

 public:
  LocalSteps sync;
  std::vector<Floats> parameters;
};

struct Case {
  std::string spec;
  LocalStepsOptions options;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  std::vector<std::string> specs = default_specs();
  specs.insert(specs.end(), {"topk:density=0.05", "topk:values=2bit,decay=0.95"});
  for (const std::string& spec : specs) {
    all.push_back({spec, {.every = 4}});
    all.push_back({spec, {.every = 5, .outer = "sgd,lr=1", .fragments = 3, .overlap = 2}});
  }
  return all;
}
class LocalStepsLaw : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, LocalStepsLaw, testing::ValuesIn(cases()), [](const auto& one) {
  return test_name(one.param.spec) + "_" + std::to_string(one.param.options.fragments);
});

TEST_P(LocalStepsLaw, AllRanksHoldTheSameBitsAfterEveryOuterStep) {
  const auto& [spec, options] = GetParam();
  constexpr int kWorld = 3;
  constexpr int kSteps = 15;
  std::vector<std::vector<std::vector<Floats>>> anchors(kWorld);     // per rank and step
  std::vector<std::vector<std::vector<Floats>>> parameters(kWorld);  // after whole rounds
  run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Training training(std::move(transport), spec, options);
    const auto start = training.anchors();
    for (int step = 1; step <= kSteps; ++step) {
      training.step();
      anchors[rank].push_back(training.anchors());
      if (step % static_cast<int>(options.every) == 0) {
        parameters[rank].push_back(training.parameters);
      }
    }
    // A method may hold back a whole round, but not all of them.
    EXPECT_TRUE(training.anchors() != start);
  });
  for (int rank = 1; rank < kWorld; ++rank) {
    EXPECT_EQ(anchors[static_cast<std::size_t>(rank)], anchors[0]) << rank;
    if (options.overlap == 0) {
      EXPECT_EQ(parameters[static_cast<std::size_t>(rank)], parameters[0]) << rank;
    }
  }
}

TEST_P(LocalStepsLaw, SavedAnywhereInARoundContinuesToTheSameBits) {
  const auto& [spec, options] = GetParam();
  constexpr int kWorld = 2;
  constexpr int kSteps = 16;
  for (const int saved_at : {5, 6, 7, 8}) {
    run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
      Training straight(std::move(transport), spec, options);
      std::vector<std::byte> session, sync;
      std::vector<Floats> parameters;
      for (int step = 0; step < kSteps; ++step) {
        if (step == saved_at) {
          sync = straight.sync.save_bytes();
          session = straight.session().save_bytes();
          parameters = straight.parameters;
        }
        straight.step();
      }
      const auto end = straight.parameters;
      const auto anchors = straight.anchors();
      straight.parameters = parameters;
      straight.session().load_bytes(session);
      straight.sync.load_bytes(sync);
      for (int step = saved_at; step < kSteps; ++step) straight.step();
      EXPECT_EQ(straight.parameters, end) << saved_at;
      EXPECT_EQ(straight.anchors(), anchors) << saved_at;
    });
  }
}

// Local changes of all ranks and rounds arrive in the anchor: at once, or later from a residual.
TEST(LocalSteps, NothingIsLostOverRounds) {
  constexpr int kWorld = 3;
  for (const std::size_t fragments : {1U, 4U}) {
    for (const std::uint64_t overlap : {0U, 3U}) {
      std::vector<std::vector<double>> moved(kWorld);
      std::vector<std::vector<Floats>> last(kWorld);
      run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
        const auto rank = static_cast<std::size_t>(transport->rank());
        Training training(
            std::move(transport), "topk:density=0.2",
            {.every = 4, .outer = "sgd,lr=1", .fragments = fragments, .overlap = overlap});
        for (const Floats& tensor : training.parameters) {
          moved[rank].insert(moved[rank].end(), tensor.begin(), tensor.end());
        }
        for (int step = 0; step < 23; ++step) {
          const auto before = training.parameters;
          const auto number = training.sync.step();
          training.step();
          std::size_t k = 0;
          for (std::size_t i = 0; i < before.size(); ++i) {
            for (const float change :
                 gradient(before[i].size(), static_cast<int>(rank), number * 10 + i)) {
              moved[rank][k++] += 0.01 * static_cast<double>(change);
            }
          }
        }
        // A fifth of the elements leaves the residual per round without local steps.
        for (int step = 0; step < 4 * 7; ++step) training.exchange();
        last[rank] = training.parameters;
      });
      EXPECT_EQ(last[1], last[0]);
      std::size_t k = 0;
      double worst = 0;
      for (const Floats& tensor : last[0]) {
        for (const float value : tensor) {
          const double expected = (moved[0][k] + moved[1][k] + moved[2][k]) / kWorld;
          worst = std::max(worst, std::abs(static_cast<double>(value) - expected));
          ++k;
        }
      }
      EXPECT_LT(worst, 1e-5) << fragments << " fragments, overlap " << overlap;
    }
  }
}

// Plain SGD inside, every = 1 and an outer step of 1 is data-parallel SGD.
TEST(LocalSteps, OfOneStepAreDataParallelSgd) {
  constexpr int kWorld = 4;
  constexpr float kRate = 0.1F;
  const std::vector<Tensor> one = {{"w", {500, 10}}};
  std::vector<double> expected(5000, 0.5);
  std::vector<Floats> targets;
  for (int rank = 0; rank < kWorld; ++rank) targets.push_back(gradient(5000, rank, 7));
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double mean = 0;
      for (int rank = 0; rank < kWorld; ++rank) {
        mean += (expected[i] - static_cast<double>(targets[static_cast<std::size_t>(rank)][i])) /
                kWorld;
      }
      expected[i] -= static_cast<double>(kRate) * mean;
    }
  }
  run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Session session(std::move(transport), {});
    LocalSteps sync(session, {.every = 1, .outer = "sgd,lr=1"}, one);
    Floats w(5000, 0.5F);
    sync.set_anchor(0, w);
    for (int step = 0; step < 20; ++step) {
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= kRate * (w[i] - targets[rank][i]);
      const auto due = sync.advance();
      ASSERT_EQ(due.start.size(), 1U);
      sync.start(0, w);
      sync.apply(0, w);
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(w[i]), expected[i], 2e-6);
    }
  });
}

TEST(LocalSteps, FragmentsAreOfAboutEqualSizeAndTakeTurns) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {});
    std::vector<Tensor> many;
    for (int i = 0; i < 40; ++i) many.push_back({"t" + std::to_string(i), {10 + i, 64}});
    LocalSteps sync(session, {.every = 10, .fragments = 4, .overlap = 1}, many);
    std::size_t least = 1 << 30, most = 0, all = 0, started = 0;
    std::vector<int> seen(many.size());
    for (std::size_t f = 0; f < 4; ++f) {
      least = std::min(least, sync.layout(f).elements);
      most = std::max(most, sync.layout(f).elements);
      for (const std::size_t i : sync.members(f)) ++seen[i];
    }
    EXPECT_LT(most, least + least / 20);
    EXPECT_EQ(seen, std::vector<int>(many.size(), 1));
    for (int step = 1; step <= 30; ++step) {
      const auto due = sync.advance();
      EXPECT_TRUE(sync.has_steps(0));
      EXPECT_LE(due.start.size(), 1U) << "no two at once";
      for (const std::size_t f : due.start) {
        sync.start(f, Floats(sync.layout(f).elements));
        EXPECT_FALSE(sync.has_steps(f));
        ++started;
      }
      for (const std::size_t f : due.apply) {
        Floats values(sync.layout(f).elements);
        sync.apply(f, values);
        ++all;
      }
    }
    EXPECT_EQ(started, 12U);
    EXPECT_EQ(all, 11U);  // the last is still under way
  });
}

// Steps with NaN are refused on all ranks, and sent by the next round once they are finite again.
TEST(LocalSteps, NanIsRefusedAndTrainingGoesOn) {
  std::vector<std::vector<Floats>> last(2);
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Training training(std::move(transport), "topk:density=0.3", {.every = 1});
    training.step();
    const auto good = training.anchors();
    const float kept = training.parameters[1][5];
    if (rank == 1) training.parameters[1][5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(thrown_text(ErrorCode::bad_input, [&] { training.exchange(); }),
                HasSubstr("rank 1"));
    EXPECT_EQ(training.anchors(), good);
    training.parameters[1][5] = kept;
    EXPECT_NO_THROW(static_cast<void>(training.sync.save_bytes()));
    training.step();
    last[rank] = training.parameters;
  });
  EXPECT_EQ(last[0], last[1]);
}

TEST(LocalSteps, ALostRankIsNamedByAllAndNothingIsSavedAfterwards) {
  constexpr int kWorld = 4;
  const auto thrown = try_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    Training training(std::move(transport), "topk", {.every = 4, .overlap = 1});
    for (int step = 0; step < 20; ++step) {
      if (rank == 2 && step == 6) throw std::runtime_error("killed");  // in the middle of a round
      try {
        training.step();
      } catch (const Error&) {
        EXPECT_THAT(thrown_text(ErrorCode::bad_state,
                                [&] { static_cast<void>(training.sync.save_bytes()); }),
                    HasSubstr("continue from the last saved state"));
        throw;
      }
    }
  });
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(error_text(thrown[static_cast<std::size_t>(rank)], ErrorCode::lost_peer),
                HasSubstr("rank 2"));
  }
}

TEST(LocalSteps, RanksThatDifferGetOneError) {
  const auto texts = [](const LocalStepsOptions& other) {
    const auto thrown = try_ranks(3, [&](std::unique_ptr<Transport> transport) {
      const LocalStepsOptions options = transport->rank() == 2 ? other : LocalStepsOptions{};
      Session session(std::move(transport), {.caller_settings = options.settings()});
    });
    for (const auto& error : thrown) {
      EXPECT_EQ(error_text(error, ErrorCode::mismatch), error_text(thrown[0], ErrorCode::mismatch));
    }
    return error_text(thrown[0], ErrorCode::mismatch);
  };
  EXPECT_THAT(texts({.every = 20}),
              HasSubstr("LocalSteps.every=30 on rank 0, LocalSteps.every=20 on rank 2"));
  EXPECT_THAT(texts({.outer = "sgd"}), HasSubstr("LocalSteps.outer=sgd,lr=1,momentum=0 on rank 2"));
  EXPECT_THAT(texts({.fragments = 2}), HasSubstr("LocalSteps.fragments=2 on rank 2"));
  EXPECT_THAT(texts({.overlap = 5}), HasSubstr("LocalSteps.overlap=5 on rank 2"));
}

TEST(LocalSteps, OptionsOutOfRangeAreRefused) {
  const auto text = [](const LocalStepsOptions& options) {
    return thrown_text(ErrorCode::bad_input, [&] { static_cast<void>(options.settings()); });
  };
  EXPECT_THAT(text({.every = 0}), HasSubstr("every must be 1 to"));
  EXPECT_THAT(text({.every = 4, .fragments = 5}), HasSubstr("fragments must be 1 to 4"));
  EXPECT_THAT(text({.every = 4, .overlap = 4}), HasSubstr("overlap must be below 4"));
  EXPECT_THAT(text({.outer = "adam"}), HasSubstr("there is no outer optimizer 'adam'"));
  run_ranks(1, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {});
    EXPECT_THAT(thrown_text(ErrorCode::bad_input,
                            [&] { LocalSteps(session, {.every = 9, .fragments = 5}, tensors()); }),
                HasSubstr("at most 4, the tensors of the model, got 5"));
    LocalSteps sync(session, {}, tensors());
    EXPECT_THAT(thrown_text(ErrorCode::bad_input, [&] { sync.start(0, Floats(3)); }),
                HasSubstr("got 3 parameters"));
    Floats values(elements());
    EXPECT_THAT(thrown_text(ErrorCode::bad_input, [&] { sync.apply(0, values); }),
                HasSubstr("no exchange of fragment 0 was started"));
    sync.start(0, values);
    EXPECT_THAT(thrown_text(ErrorCode::bad_input, [&] { sync.start(0, values); }),
                HasSubstr("must be applied before"));
  });
}

TEST(LocalSteps, StatesThatDoNotFitAreRefused) {
  run_ranks(1, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {});
    LocalSteps sync(session, {.every = 3, .overlap = 1}, tensors());
    for (int step = 0; step < 3; ++step) static_cast<void>(sync.advance());
    sync.start(0, gradient(elements(), 1, 1));
    const auto good = sync.save_bytes();
    const auto load = [&](const LocalStepsOptions& options, std::vector<Tensor> model,
                          std::span<const std::byte> bytes) {
      LocalSteps other(session, options, model);
      return thrown_text(ErrorCode::bad_state, [&] { other.load_bytes(bytes); });
    };
    EXPECT_THAT(load({.every = 4, .overlap = 1}, tensors(), good), HasSubstr("LocalSteps.every=3"));
    EXPECT_THAT(load({.every = 3, .overlap = 1}, {{"other", {4, 4}}}, good),
                HasSubstr("not those of this model"));
    for (std::size_t at = 0; at < good.size(); at += 997) {
      auto altered = good;
      altered[at] ^= std::byte{4};
      EXPECT_NE(load({.every = 3, .overlap = 1}, tensors(), altered), "");
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{10}, good.size() - 1}) {
      EXPECT_NE(load({.every = 3, .overlap = 1}, tensors(), std::span(good).first(length)), "");
    }
    EXPECT_NE(load({.every = 3, .overlap = 1}, tensors(), session.save_bytes()), "");
    EXPECT_THAT(thrown_text(ErrorCode::bad_state, [&] { session.load_bytes(good); }),
                HasSubstr("LocalSteps.every=3"));
  });
}

}  // namespace
}  // namespace thinreduce::local_steps_test

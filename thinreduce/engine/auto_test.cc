// Sessions with the spec `auto`: every rank has the same plan and the same bits, and what a method
// still owes when its bucket changes to another one is not lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/auto_world.h"
#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/reducer.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/auto.h"
#include "thinreduce/plan/planner.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::auto_test {
namespace {

// The steps of one rank: gradients that went in, means that came out.
struct Steps {
  std::vector<std::vector<float>> means;
  Plan plan;
};

std::vector<Steps> run(const std::string& links, int world, const std::string& spec,
                       std::uint64_t steps) {
  std::vector<Steps> all(static_cast<std::size_t>(world));
  on_cluster(links, world, {.spec = spec}, [&](Session& session) {
    Steps& own = all[static_cast<std::size_t>(session.rank())];
    for (std::uint64_t step = 0; step < steps; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      session.reduce(3, values);
      own.means.push_back(std::move(values));
    }
    own.plan = session.plan();
  });
  return all;
}

TEST(Auto, CompressesOnASlowLinkOnly) {
  for (const auto& [link, compresses] :
       {std::pair("10mbit,1ms", true), std::pair("unlimited", false)}) {
    const auto all = run(link, 2, "auto", 6);
    const Plan& plan = all[0].plan;
    ASSERT_EQ(plan.trials, 1) << link;
    ASSERT_EQ(plan.buckets.size(), 1);
    EXPECT_EQ(plan.buckets[0].spec.starts_with("dqsg"), compresses)
        << link << ": " << plan.buckets[0].spec;
    EXPECT_EQ(plan.buckets[0].id, 3);
  }
}

TEST(Auto, AllRanksHaveTheSamePlanAndBits) {
  const auto all = run("50mbit,2ms;1=20mbit,5ms", 3, "auto:error=1", 8);
  EXPECT_EQ(all[0].plan.trials, 1);
  EXPECT_NE(all[0].plan.buckets[0].spec, "fp32");
  for (const Steps& steps : all) {
    EXPECT_EQ(steps.plan.buckets[0].spec, all[0].plan.buckets[0].spec);
    EXPECT_EQ(steps.plan.predicted, all[0].plan.predicted);
    EXPECT_EQ(steps.means, all[0].means);
  }
}

TEST(Auto, MeansAreWithinTheError) {
  const auto all = run("10mbit,1ms", 3, "auto", 8);
  EXPECT_NE(all[0].plan.buckets[0].spec, "fp32");
  for (std::uint64_t step = 0; step < 8; ++step) {
    const auto exact = true_mean(kElements, 3, step);
    double error = 0;
    double energy = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      error += std::pow(static_cast<double>(all[0].means[step][i]) - exact[i], 2);
      energy += exact[i] * exact[i];
    }
    EXPECT_LT(error, 1.1 * 0.05 * energy) << "step " << step;
  }
}

TEST(Auto, NothingIsLostWhenABucketChangesItsMethod) {
  // topk with feedback is chosen on the slow link. A state is saved, and a world with a fast link
  // goes on with it: its plan goes back to fp32, with what topk still owed.
  const std::string spec = "auto:methods=topk,error=1000";
  constexpr int kWorld = 2;
  constexpr std::uint64_t kSlow = 8;
  constexpr std::uint64_t kFast = 8;
  std::vector<std::vector<std::byte>> states(kWorld);
  std::vector<double> delivered(kElements);
  const auto steps = [&](Session& session, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step < last; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      session.reduce(3, values);
      if (session.rank() != 0) continue;
      for (std::size_t i = 0; i < kElements; ++i) delivered[i] += static_cast<double>(values[i]);
    }
  };
  on_cluster("5mbit,1ms", kWorld, {.spec = spec}, [&](Session& session) {
    steps(session, 0, kSlow);
    ASSERT_TRUE(session.plan().buckets.at(0).spec.starts_with("topk"));
    states[static_cast<std::size_t>(session.rank())] = session.save_bytes();
  });
  on_cluster("unlimited", kWorld, {.spec = spec}, [&](Session& session) {
    session.load_bytes(states[static_cast<std::size_t>(session.rank())]);
    steps(session, kSlow, kSlow + kFast);
    ASSERT_EQ(session.plan().buckets.at(0).spec, "fp32") << session.plan().reason;
  });
  std::vector<double> expected(kElements);
  for (std::uint64_t step = 0; step < kSlow + kFast; ++step) {
    const auto mean = true_mean(kElements, kWorld, step);
    for (std::size_t i = 0; i < kElements; ++i) expected[i] += mean[i];
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(delivered[i], expected[i], 1e-4) << "element " << i;
  }
}

TEST(Auto, AResumedRunHasTheSamePlan) {
  std::vector<std::vector<std::byte>> states(2);
  std::vector<std::string> specs(2);
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [&](Session& session) {
    for (std::uint64_t step = 0; step < 5; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      session.reduce(3, values);
    }
    states[static_cast<std::size_t>(session.rank())] = session.save_bytes();
    specs[static_cast<std::size_t>(session.rank())] = session.plan().buckets.at(0).spec;
  });
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [&](Session& session) {
    session.load_bytes(states[static_cast<std::size_t>(session.rank())]);
    auto values = gradient(kElements, session.rank(), 5);
    session.reduce(3, values);
    const Plan plan = session.plan();
    ASSERT_EQ(plan.buckets.size(), 1);
    EXPECT_EQ(plan.buckets[0].spec, specs[static_cast<std::size_t>(session.rank())]);
  });
}

TEST(Auto, OneRankAndTensorsThatAreNeverCompressed) {
  on_cluster("10mbit,1ms", 1, {.spec = "auto"}, [](Session& session) {
    const BucketHandle bucket = session.add_bucket(mixed_layout(1));
    BucketLayout biases{.id = 2, .elements = 0, .tensors = {}};
    biases.add("bias", {100});
    const BucketHandle small = session.add_bucket(biases);
    for (std::uint64_t step = 0; step < 30; ++step) {
      auto values = gradient(bucket.layout().elements, 0, step);
      auto others = gradient(100, 0, step);
      auto first = session.submit(bucket, values);
      auto second = session.submit(small, others);
      first.get();
      second.get();
      EXPECT_EQ(others, gradient(100, 0, step));
    }
    EXPECT_EQ(session.plan().buckets.at(1).spec, "fp32");
  });
}

TEST(Auto, ABucketThatIsForgottenComesBack) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step == 6) session.forget(1);
      for (std::uint32_t id = 1; id <= 2; ++id) {
        auto values = gradient(kElements, session.rank(), step);
        session.reduce(id, values);
      }
    }
    ASSERT_EQ(session.plan().buckets.size(), 2);
    EXPECT_NE(session.plan().buckets[1].spec, "fp32");
  });
}

TEST(Auto, ABucketOfItsOwnSpecIsNotPlanned) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    BucketLayout own{.id = 1, .elements = kElements, .tensors = {}, .spec = "bf16"};
    const BucketHandle bucket = session.add_bucket(own);
    for (std::uint64_t step = 0; step < 6; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      session.submit(bucket, values).get();
      auto planned = gradient(kElements, session.rank(), step);
      session.reduce(2, planned);
    }
    ASSERT_EQ(session.plan().buckets.size(), 1);
    EXPECT_EQ(session.plan().buckets[0].id, 2);
    own.spec = "auto:error=0.5";
    try {
      static_cast<void>(session.add_bucket(own));
      ADD_FAILURE() << "a bucket must not plan on its own";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_spec);
    }
  });
}

// As DistributedDataParallel does: its first step has other buckets than the later ones.
TEST(Auto, BeginStepOpensAStep) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    const auto reduce = [&](const BucketHandle& bucket, std::uint64_t step) {
      auto values = gradient(kElements, session.rank(), step);
      session.begin_step();
      session.submit(bucket, values).get();
    };
    const BucketLayout other{.id = 1, .elements = kElements, .tensors = {}, .spec = "fp32"};
    reduce(session.add_bucket(other), 0);
    const auto planned = session.add_bucket({.id = 2, .elements = kElements, .tensors = {}});
    for (std::uint64_t step = 1; step < 6; ++step) reduce(planned, step);
    ASSERT_EQ(session.plan().buckets.size(), 1);
    EXPECT_EQ(session.plan().buckets[0].ready, 0);
  });
}

TEST(Auto, RanksThatSubmitInAnotherOrderGetAnError) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    int errors = 0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      for (std::uint32_t id = 0; id < 2; ++id) {
        auto values = gradient(kElements, session.rank(), step);
        const auto own = session.rank() == 0 ? id : 1 - id;
        try {
          session.reduce(own, values);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
          ++errors;
        }
      }
    }
    EXPECT_EQ(errors, 12);
  });
}

// Runs steps on `before`, changes the link of all ranks, and runs 20 steps more.
void run_with_change(const std::string& before, const std::string& after, int world,
                     const std::function<void(const Session&)>& then,
                     const std::function<void(const Session&)>& at_end) {
  auto ranks = make_cluster(before, world);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, transport = std::shared_ptr<SimulatedTransport>(std::move(rank))] {
      Session session(transport, {.spec = "auto:methods=bf16+dqsg"});
      const auto run_steps = [&](std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t step = first; step < last; ++step) {
          auto values = gradient(kElements, session.rank(), step);
          session.reduce(3, values);
        }
      };
      run_steps(0, 20);
      then(session);
      transport->align();
      transport->set_link(Link::parse(after));
      transport->align();
      run_steps(20, 40);
      at_end(session);
    });
  }
}

TEST(Auto, FollowsALinkThatChangesWithoutAProbe) {
  for (const int world : {2, 4}) {
    run_with_change(
        "1gbit,0.5ms", "50mbit,0.5ms", world,
        [](const Session& session) {
          EXPECT_EQ(session.plan().trials, 1);
          EXPECT_EQ(session.plan().followed, 0);
          EXPECT_NEAR(session.plan().link.bytes_per_second, 1.25e8, 0.2e8);
        },
        [](const Session& session) {
          const Plan plan = session.plan();
          EXPECT_EQ(plan.trials, 1) << "neither a probe nor trials";
          EXPECT_EQ(plan.followed, 1);
          EXPECT_TRUE(plan.buckets.at(0).spec.starts_with("dqsg")) << plan.reason;
          EXPECT_NEAR(plan.link.bytes_per_second, 6.25e6, 1.5e6);
        });
  }
}

TEST(Auto, TriesTheCandidatesWhenALinkBecomesSlowOnWhichThereWasNothingToGain) {
  run_with_change(
      "unlimited,1ms", "10mbit,1ms", 2,
      [](const Session& session) {
        EXPECT_EQ(session.plan().buckets.at(0).spec, "fp32");
        EXPECT_FALSE(session.plan().buckets.at(0).candidates.at(2).tried);
      },
      [](const Session& session) {
        EXPECT_TRUE(session.plan().buckets.at(0).spec.starts_with("dqsg")) << session.plan().reason;
      });
}

TEST(Auto, SeveralBucketsInFlightAreCompressed) {
  std::vector<std::vector<std::vector<float>>> means(3);  // of the last step, by rank and bucket
  on_cluster("20mbit,2ms", 3, {.spec = "auto"}, [&](Session& session) {
    std::vector<BucketHandle> buckets;
    for (std::uint32_t id = 0; id < 5; ++id) {
      buckets.push_back(session.add_bucket({.id = id, .elements = kElements, .tensors = {}}));
    }
    auto& own = means[static_cast<std::size_t>(session.rank())];
    for (std::uint64_t step = 0; step < 10; ++step) {
      own.assign(buckets.size(), gradient(kElements, session.rank(), step));
      session.begin_step();
      std::vector<std::future<Report>> done;
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        done.push_back(session.submit(buckets[i], own[i]));
      }
      for (auto& one : done) one.get();
      if (step == 5) session.undo_step();
    }
    const Plan plan = session.plan();
    EXPECT_EQ(plan.buckets.size(), 5);
    for (const PlanBucket& bucket : plan.buckets) EXPECT_NE(bucket.spec, "fp32") << bucket.id;
  });
  EXPECT_EQ(means[1], means[0]);
  EXPECT_EQ(means[2], means[0]);
}

TEST(Auto, WaitsForTheWarmUp) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto", .warmup_steps = 8}, [](Session& session) {
    for (std::uint64_t step = 0; step < 40; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      session.reduce(0, values);
      const double exact = true_mean(1, 2, step)[0];
      EXPECT_NEAR(values[0], exact, step < 8 ? 1e-6 : 1) << "step " << step;
    }
    EXPECT_NE(session.plan().buckets.at(0).spec, "fp32");
  });
}

TEST(Auto, GoesOnAfterBucketsInAnotherOrder) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    int errors = 0;
    for (std::uint64_t step = 0; step < 30; ++step) {
      for (std::uint32_t id = 0; id < 2; ++id) {
        auto values = gradient(kElements, session.rank(), step);
        const bool swapped = step == 2 && session.rank() == 0;
        try {
          session.reduce(swapped ? 1 - id : id, values);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
          ++errors;
        }
      }
    }
    EXPECT_EQ(errors, 2);
  });
}

// The sizes of messages follow from the link, so ranks that plan with different links must not
// exchange any. A change of the plan in a step that is undone is undone as well.
TEST(Auto, RanksThatPlanWithDifferentLinksDisagree) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    const SessionOptions options{.spec = "auto"};
    WorkerPool pool(1);
    Planner planner(auto_options(Spec::parse("auto")), 2);
    Reducer reducer(*transport, options, pool);
    reducer.set_planner(&planner);
    const auto bucket = std::make_shared<const RegisteredBucket>(
        BucketLayout{.id = 0, .elements = 10, .tensors = {}}, Spec::parse("fp32"), 0);
    std::vector<float> values(10, static_cast<float>(transport->rank()));
    const auto reduce = [&] {
      Job job;
      job.bucket = bucket;
      job.values = values;
      return reducer.reduce(job, *transport);
    };
    const Conditions before{.link = {.bytes_per_second = 2e6}, .slowdown = 1.5};
    planner.set_conditions(before);
    reducer.begin_step();
    if (transport->rank() == 1) {
      reducer.set_link({.bytes_per_second = 1e6});
      planner.set_conditions({.link = {.bytes_per_second = 1e6}, .slowdown = 2});
    }
    try {
      static_cast<void>(reduce());
      ADD_FAILURE() << "reduced over two links";
    } catch (const Disagreement& thrown) {
      EXPECT_EQ(thrown.error.code(), ErrorCode::mismatch) << thrown.error.what();
    }
    reducer.undo_step();
    EXPECT_EQ(planner.conditions().link, before.link);
    EXPECT_EQ(planner.conditions().slowdown, before.slowdown);
    EXPECT_NO_THROW(static_cast<void>(reduce()));
    EXPECT_EQ(values, std::vector<float>(10, 0.5F));
  });
}

TEST(Auto, AStateWithoutItsMethodIsRefused) {
  on_cluster("10mbit,1ms", 1, {.spec = "auto"}, [](Session& session) {
    auto values = gradient(kElements, 0, 0);
    session.reduce(0, values);
    SessionState state = decode_state(session.save_bytes(), "test");
    auto fields = split_fields(state.buckets.at(0));
    for (const auto& bytes :
         {std::vector<std::byte>{}, std::vector<std::byte>(8, std::byte{200})}) {
      auto bad = fields;
      for (StateField& field : bad) {
        if (field.name == "variant") field.values = bytes;
      }
      state.buckets.at(0).fields = join_fields(bad);
      try {
        session.load_bytes(encode_state(state));
        ADD_FAILURE() << "loaded a variant of " << bytes.size() << " bytes";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_state) << error.what();
      }
    }
  });
}

TEST(Auto, IsNoMethodByItself) {
  EXPECT_THROW(static_cast<void>(Spec::parse("auto").make({})), Error);
  for (const char* spec : {"auto:methods=", "auto:methods=dqsg+dqsg", "auto:methods=gradiveq",
                           "auto+qsgd", "auto:error=-1"}) {
    EXPECT_THROW(static_cast<void>(Spec::parse(spec)), Error) << spec;
  }
  EXPECT_EQ(Spec::parse("auto:methods=fft+dqsg").full_text(),
            "auto:error=0.05,methods=dqsg+fft,try=useful");
}

}  // namespace
}  // namespace thinreduce::auto_test

// Sessions with the spec `auto` on links and machines that are hard to plan for: a sane plan, the
// same on all ranks, and never a hang.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/auto_world.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/plan/planner.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::auto_links_test {
namespace {

// Runs steps of one bucket on every rank; `change` is called before each step. Expects the same
// bits and the same plan on all ranks, and returns the plan.
template <typename Change>
Plan run_ranks(std::vector<std::unique_ptr<SimulatedTransport>> ranks, std::uint64_t steps,
               const Change& change) {
  std::vector<std::vector<float>> last(ranks.size());
  std::vector<Plan> plans(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&, transport = std::shared_ptr<SimulatedTransport>(std::move(rank))] {
        const auto own = static_cast<std::size_t>(transport->rank());
        Session session(transport, {.spec = "auto"});
        for (std::uint64_t step = 0; step < steps; ++step) {
          change(*transport, step);
          last[own] = gradient(kElements, session.rank(), step);
          session.reduce(3, last[own]);
        }
        plans[own] = session.plan();
      });
    }
  }
  for (std::size_t rank = 1; rank < last.size(); ++rank) {
    EXPECT_EQ(last[rank], last[0]) << "rank " << rank;
    EXPECT_EQ(plans[rank].buckets.at(0).spec, plans[0].buckets.at(0).spec);
    EXPECT_EQ(plans[rank].predicted, plans[0].predicted);
  }
  return plans[0];
}

void change_nothing(SimulatedTransport& /*transport*/, std::uint64_t /*step*/) {}

TEST(Auto, ALinkThatVariesWildlyDoesNotKeepThePlannerBusy) {
  const std::vector<Link> links = {Link::parse("5mbit,20ms"), Link::parse("1gbit,0.1ms"),
                                   Link::parse("100mbit,1ms"), Link::parse("20mbit,5ms")};
  const Plan plan = run_ranks(make_cluster("100mbit,1ms", 3), 100,
                              [&](SimulatedTransport& transport, std::uint64_t step) {
                                const std::uint64_t mixed = step * 2654435761U >> 7U;
                                transport.align();
                                transport.set_link(links[mixed % links.size()]);
                                transport.align();
                              });
  EXPECT_LE(plan.trials, 10);
  EXPECT_LE(plan.followed, 6);
  EXPECT_TRUE(std::isfinite(plan.predicted) && plan.predicted > 0);
}

TEST(Auto, TheSlowestRankDecides) {
  const Plan plan = run_ranks(make_cluster("1gbit,0.1ms;2=5mbit,20ms", 4), 12, change_nothing);
  EXPECT_NEAR(plan.link.bytes_per_second, 0.625e6, 0.1e6);
  EXPECT_NE(plan.buckets.at(0).spec, "fp32") << plan.reason;
}

// A rank that is late in every step: the others wait for it, and no method changes that.
TEST(Auto, ARankThatIsAlwaysLateIsNoSlowLink) {
  const Plan plan = run_ranks(make_cluster("1gbit,0.1ms", 3), 60,
                              [](SimulatedTransport& transport, std::uint64_t step) {
                                const bool late = step >= 20 && transport.rank() == 1;
                                if (!late) return;
                                Moment later = transport.hand_over();
                                later.time += std::chrono::milliseconds(50);
                                transport.go_on_from(later);
                              });
  EXPECT_NEAR(plan.link.bytes_per_second, 1.25e8, 0.3e8);
  EXPECT_EQ(plan.followed, 0);
}

// A rank whose clock runs faster, as if its processor were slower than that of the others.
class FastClock final : public Transport {
 public:
  FastClock(std::unique_ptr<Transport> inner, int times)
      : inner_(std::move(inner)), times_(times) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] Clock::time_point now() const override { return start_ + passed() * times_; }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  [[nodiscard]] Clock::duration passed() const { return Clock::now() - start_; }
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  int times_;
  Clock::time_point start_ = Clock::now();
};

TEST(Auto, RanksWithDifferentProcessorsHaveOnePlan) {
  auto transports = connect_threads(3);
  std::vector<std::string> specs(3);
  std::vector<double> predicted(3);
  {
    std::vector<std::jthread> ranks;
    for (auto& transport : transports) {
      ranks.emplace_back([&, inner = std::move(transport)]() mutable {
        const int times = inner->rank() == 1 ? 30 : 1;
        Session session(std::make_shared<FastClock>(std::move(inner), times),
                        {.spec = "auto:try=all", .link = Link::parse("1gbit,0.1ms")});
        for (std::uint64_t step = 0; step < 40; ++step) {
          auto values = gradient(kElements, session.rank(), step);
          session.reduce(0, values);
        }
        const Plan plan = session.plan();
        specs[static_cast<std::size_t>(session.rank())] = plan.buckets.at(0).spec;
        predicted[static_cast<std::size_t>(session.rank())] = plan.predicted;
      });
    }
  }
  EXPECT_EQ(specs, std::vector<std::string>(3, specs[0]));
  EXPECT_EQ(predicted, std::vector<double>(3, predicted[0]));
}

TEST(Auto, OneRankHasNothingToPlan) {
  for (const char* spec : {"auto", "auto:try=all"}) {
    on_cluster("10mbit,1ms", 1, {.spec = spec}, [](Session& session) {
      for (std::uint64_t step = 0; step < 30; ++step) {
        auto values = gradient(kElements, 0, step);
        session.reduce(0, values);
        if (session.plan().buckets.at(0).spec == "fp32") {
          EXPECT_EQ(values, gradient(kElements, 0, step));
        }
      }
      EXPECT_EQ(session.plan().buckets.at(0).spec, "fp32") << session.plan().reason;
    });
  }
}

TEST(Auto, PlanningIsCounted) {
  on_cluster("10mbit,5ms", 2, {.spec = "auto"}, [](Session& session) {
    double planning = 0;
    for (std::uint64_t step = 0; step < 8; ++step) {
      auto values = gradient(kElements, session.rank(), step);
      planning += session.reduce(0, values).statistics.at("planning_seconds");
    }
    // At least fp32 and bf16 were tried, one latency each way.
    EXPECT_GT(planning, 4 * 0.005);
    EXPECT_NEAR(session.plan().planning, planning, 1e-9);
    EXPECT_GT(session.plan().elapsed, planning);
  });
}

}  // namespace
}  // namespace thinreduce::auto_links_test

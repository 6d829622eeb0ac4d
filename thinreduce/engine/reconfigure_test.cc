// Ranks that die, leave and join: the others go on from the last completed step, no rank has a
// wrong mean, and only the residuals of lost ranks are lost.
//
// Specs come from methods(), so a new method is under these laws by being registered.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/elastic_world.h"
#include "tests/faulty_transport.h"
#include "tests/law_specs.h"
#include "tests/ranks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"

namespace thinreduce::reconfigure_test {
namespace {

using What = ElasticEvent::What;

bool keeps_everything(const std::string& spec) {
  const RegisteredBucket bucket(mixed_layout(0), Spec::parse(spec), kElasticMinElements);
  return bucket.keeps && balances(spec) && losses_of(spec).decay == 1;
}

// Adds `times` the values to the balance.
void add_to(std::vector<double>& balance, const std::vector<float>& values, double times) {
  for (std::size_t i = 0; i < balance.size(); ++i) {
    balance[i] += times * static_cast<double>(values[i]);
  }
}

// Everything that was put in was delivered, or is owed by a member that is alive, or was owed by
// one that was lost. A rank that was lost before it reached its heir takes that debt with it.
void expect_balance(const ElasticPlan& plan, const std::vector<ElasticMember>& accounts,
                    const std::map<std::uint64_t, ElasticStep>& steps) {
  for (const BucketLayout& layout : elastic_layouts()) {
    std::vector<double> balance(layout.elements);
    for (const auto& [number, step] : steps) {
      for (const int member : step.world) {
        add_to(balance, elastic_gradient(layout, member, number), 1);
      }
      add_to(balance, step.means[layout.id], -static_cast<double>(step.world.size()));
    }
    for (std::size_t member = 0; member < accounts.size(); ++member) {
      const ElasticMember& account = accounts[member];
      if (account.left) continue;
      // A member that died in a step which the others completed had reduced it, too.
      const auto last = steps.find(account.last_begun);
      const bool reduced = last != steps.end() &&
                           std::ranges::count(last->second.world, static_cast<int>(member)) > 0;
      const Saved saved({.spec = plan.spec, .layout = layout, .min_elements = kElasticMinElements},
                        account.place, account.gone && !reduced ? account.before : account.state);
      add_to(balance, saved.owed(), -1);
    }
    for (std::size_t i = 0; i < balance.size(); ++i) {
      ASSERT_NEAR(balance[i], 0, 2e-3 * static_cast<double>(plan.steps))
          << "bucket " << layout.id << ", element " << i;
    }
  }
}

// With fp32 there is nothing but the mean of those who took part.
void expect_exact_means(const std::map<std::uint64_t, ElasticStep>& steps) {
  for (const auto& [number, step] : steps) {
    for (const BucketLayout& layout : elastic_layouts()) {
      std::vector<double> mean(layout.elements);
      for (const int member : step.world) {
        add_to(mean, elastic_gradient(layout, member, number),
               1 / static_cast<double>(step.world.size()));
      }
      for (std::size_t i = 0; i < mean.size(); ++i) {
        ASSERT_NEAR(step.means[layout.id][i], mean[i], 1e-6) << "step " << number;
      }
    }
  }
}

void expect_all_right(const ElasticPlan& plan, const std::vector<ElasticMember>& accounts) {
  const auto steps = agreed_steps(accounts);
  ASSERT_EQ(steps.size(), plan.steps);
  if (plan.spec == "fp32") expect_exact_means(steps);
  bool heir_was_lost = false;
  for (const ElasticMember& account : accounts) {
    for (const int member : account.lost) {
      const ElasticMember& lost = accounts[static_cast<std::size_t>(member)];
      EXPECT_TRUE(lost.gone || lost.finished) << member;
      heir_was_lost = heir_was_lost || lost.left;
    }
  }
  if (keeps_everything(plan.spec) && !heir_was_lost) expect_balance(plan, accounts, steps);
}

class Reconfigure : public testing::TestWithParam<std::string> {};

TEST_P(Reconfigure, KeepsWhatTheLivingOweAndLosesNoStep) {
  const std::uint64_t start = steps_of(GetParam(), 0);
  const ElasticPlan plan{.spec = GetParam(),
                         .members = 3,
                         .steps = start + 6,
                         .events = {{What::dies, 1, start + 1, 3},
                                    {What::joins, 3, start + 2},
                                    {What::stumbles, 2, start + 3, 2},
                                    {What::leaves, 0, start + 4}}};
  const auto accounts = run_elastic(plan);
  expect_all_right(plan, accounts);
  EXPECT_EQ(accounts[2].lost, std::set<int>{1});
  EXPECT_TRUE(accounts[0].left);
  const auto& changes = accounts[2].changes;
  const auto any = [&](auto field) {
    return std::ranges::any_of(changes,
                               [&](const auto& change) { return !(change.*field).empty(); });
  };
  EXPECT_TRUE(any(&Reconfiguration::left));
  EXPECT_TRUE(any(&Reconfiguration::joined));
}

// Returns the fields of bucket 0; a rank that owes nothing shows no values.
std::vector<StateField> fields_of(const std::vector<std::byte>& state) {
  auto fields = split_fields(decode_state(state, "test").buckets.at(0));
  for (StateField& field : fields) {
    const auto values = field.kind == FieldKind::summed ? field.floats() : std::vector<float>{1};
    if (std::ranges::all_of(values, [](float value) { return value == 0; })) field.values.clear();
  }
  return fields;
}

// A rank joins two others: all have what redistribute() would have given them, sections at their
// new keepers included.
TEST_P(Reconfigure, GivesARankThatJoinsWhatRedistributeWould) {
  // With four compressed tensors, one section moves to the rank that joins and one to another rank.
  BucketLayout layout = mixed_layout(0);
  layout.add("third.weight", {30, 70});
  layout.add("fourth.weight", {25, 60});
  auto two = connect_threads(2);
  auto three = connect_threads(3);
  std::vector<std::vector<std::byte>> before(2);
  std::vector<std::vector<std::byte>> after(3);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(rank < 2 ? std::move(two[rank]) : std::move(connect_threads(1)[0]),
                      {.spec = GetParam(), .link = kOwnerLink, .momentum_inside_ok = true});
      const auto bucket = session.add_bucket(layout);
      for (std::uint64_t step = 0; rank < 2 && step < steps_of(GetParam(), 3); ++step) {
        auto values = gradient(bucket.layout().elements, static_cast<int>(rank), step);
        session.submit(bucket, values).get();
      }
      if (rank < 2) before[rank] = session.save_bytes();
      EXPECT_EQ(session.reconfigure(std::move(three[rank])).joined, std::vector<int>{2});
      after[rank] = session.save_bytes();
    });
  }
  ranks.clear();
  const auto expected = redistribute(before, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto wanted = fields_of(expected[rank]);
    const auto found = fields_of(after[rank]);
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].name, wanted[i].name);
      EXPECT_TRUE(found[i].values == wanted[i].values) << found[i].name << " of rank " << rank;
    }
  }
}

std::vector<std::string> elastic_specs() {
  std::vector<std::string> specs = law_specs();
  for (const char* spec : {"auto", "dqsg:feedback=on", "gradiveq:warmup=2", "sketch:momentum=0.9",
                           "gradiveq:warmup=1,interval=2+dqsg", "demo:beta=1"}) {
    specs.emplace_back(spec);
  }
  return specs;
}
INSTANTIATE_TEST_SUITE_P(All, Reconfigure, testing::ValuesIn(elastic_specs()),
                         [](const auto& test) {
                           return fmt::format("{}_{}", test.index, test_name(test.param));
                         });

// A rank dies at each message of a step in turn, so that every number of the others has the means
// already, or has all of them and waits for the rank at the end of the step.
TEST(ReconfigureAtEveryMessage, NoWrongMean) {
  for (const char* spec : {"fp32", "topk", "powersgd"}) {
    bool repeated = false;
    bool completed = false;
    for (std::uint64_t message = 0;; message += kSanitized ? 7 : 1) {
      SCOPED_TRACE(fmt::format("{}, message {}", spec, message));
      const ElasticPlan plan{
          .spec = spec, .members = 3, .steps = 2, .events = {{What::dies, 1, 1, message}}};
      const auto accounts = run_elastic(plan);
      if (!accounts[1].gone) break;  // the step has fewer messages
      expect_all_right(plan, accounts);
      if (testing::Test::HasFatalFailure()) return;
      for (const int member : {0, 2}) {
        for (const auto& change : accounts[static_cast<std::size_t>(member)].changes) {
          (change.repeat ? repeated : completed) = true;
        }
      }
    }
    EXPECT_TRUE(repeated) << spec;
    EXPECT_TRUE(completed || kSanitized) << spec;
  }
}

// One rank has reduced all of a step and the other gives up before it has: both take it back.
TEST(ReconfigureAfterAStep, ThatOneRankHasNotReducedBothTakeItBack) {
  auto second = connect_threads(2);
  run_ranks(2, [&](std::unique_ptr<Transport> first) {
    Session session(std::move(first), {.spec = "topk"});
    const auto rank = static_cast<std::size_t>(session.rank());
    auto values = gradient(5000, session.rank(), 0);
    session.begin_step();
    session.reduce(0, values);
    session.commit_step();
    const auto before = fields_of(session.save_bytes());
    session.begin_step();
    session.reduce(0, values);
    if (rank == 1) session.abandon("test");
    thrown_text(ErrorCode::lost_peer, [&] { session.commit_step(); });
    const auto change = session.reconfigure(std::move(second[rank]));
    EXPECT_TRUE(change.repeat);
    EXPECT_EQ(change.steps, 1U);
    const auto after = fields_of(session.save_bytes());
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].values, before[i].values);
  });
}

// Returns a random plan: up to `most` members at a time, at least 2, `events` deaths, leaves and
// joins. THINREDUCE_ELASTIC_SEED chooses another.
ElasticPlan random_plan(const std::string& spec, int events, std::uint64_t steps, unsigned seed) {
  constexpr int kMax = 8;
  std::mt19937 random(seed);
  ElasticPlan plan{.spec = spec, .members = 4, .steps = steps};
  std::vector<int> alive = {0, 1, 2, 3};
  int next = 4;
  const std::uint64_t interval = steps / static_cast<std::uint64_t>(events);
  for (int i = 0; i < events; ++i) {
    const std::uint64_t step = interval * static_cast<std::uint64_t>(i) + 1;
    const bool joins = alive.size() <= 2 || (alive.size() < kMax && random() % 2 == 0);
    if (joins) {
      plan.events.push_back({What::joins, next, step});
      alive.push_back(next++);
      continue;
    }
    const auto at = static_cast<std::ptrdiff_t>(random() % alive.size());
    plan.events.push_back({random() % 3 == 0 ? What::leaves : What::dies,
                           alive[static_cast<std::size_t>(at)], step, random() % 40});
    alive.erase(alive.begin() + at);
    plan.events.push_back(
        {What::stumbles, alive[random() % alive.size()], step + 1, random() % 40});
  }
  return plan;
}

TEST(ReconfigureAtRandom, NoHangAndNoWrongMean) {
  const char* const given = std::getenv("THINREDUCE_ELASTIC_EVENTS");
  const int events = given == nullptr ? (kSanitized ? 6 : 20) : std::atoi(given);
  double longest = 0;
  for (const char* spec : {"fp32", "topk", "powersgd", "gradiveq:warmup=2"}) {
    SCOPED_TRACE(spec);
    const auto plan = random_plan(spec, events, static_cast<std::uint64_t>(events) * 10, 17);
    const auto accounts = run_elastic(plan);
    expect_all_right(plan, accounts);
    for (const ElasticMember& account : accounts) {
      for (const auto& change : account.changes) longest = std::max(longest, change.seconds);
    }
  }
  RecordProperty("longest_reconfiguration_ms", static_cast<int>(longest * 1000));
  fmt::print("{} deaths, leaves and joins per spec; longest reconfiguration {:.3f} s\n", events,
             longest);
}

// A caller that fails after a reconfiguration, for example while it shares parameters, calls again.
TEST(ReconfigureTwice, AStepToRepeatStaysOne) {
  auto second = connect_threads(2);
  auto third = connect_threads(2);
  run_ranks(2, [&](std::unique_ptr<Transport> first) {
    Session session(std::move(first), {.spec = "topk"});
    const auto rank = static_cast<std::size_t>(session.rank());
    auto values = gradient(2000, session.rank(), 0);
    session.begin_step();
    session.reduce(0, values);
    EXPECT_TRUE(session.reconfigure(std::move(second[rank])).repeat);
    EXPECT_TRUE(session.reconfigure(std::move(third[rank])).repeat);
    session.begin_step();
    EXPECT_EQ(session.reduce(0, values).step, 1U);
    session.commit_step();
  });
}

// The residuals of all ranks together, before and after this: in a step of three ranks rank 1
// leaves, and an operation of its commit fails; the others form a world without it, which fails at
// once, and then one with it.
struct Return {
  std::vector<double> before;  // by element
  std::vector<double> after;
  bool struck = false;
  bool joined = false;  // rank 1, in the last world
};
Return leave_and_come_back(const Fault& fault) {
  constexpr std::size_t kElements = 3000;
  const BucketLayout layout{.id = 0, .elements = kElements, .tensors = {}};
  auto first = connect_threads(3);
  auto without = connect_threads(2);
  auto again = connect_threads(3);
  Return result{.before = std::vector<double>(kElements), .after = std::vector<double>(kElements)};
  std::mutex mutex;
  std::barrier together(3);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const RankInWorld place{static_cast<int>(rank), 3};
      const auto faulty = std::make_shared<FaultyTransport>(std::move(first[rank]));
      Session session(faulty, {.spec = "topk"});
      const auto add_owed = [&](std::vector<double>& sum) {
        const Saved saved({.spec = "topk", .layout = layout}, place, session.save_bytes());
        const std::lock_guard lock(mutex);
        add_to(sum, saved.owed(), 1);
      };
      auto values = gradient(kElements, place.rank, 0);
      session.begin_step();
      session.reduce(0, values);
      add_owed(result.before);
      together.arrive_and_wait();
      faulty->arm(rank == 1 ? fault : Fault{});
      together.arrive_and_wait();
      try {
        (void)session.commit_step(rank == 1);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::lost_peer) << error.what();
      }
      if (rank == 1) result.struck = faulty->peer() >= 0;
      if (rank != 1) (void)session.reconfigure(std::move(without[rank / 2]));
      together.arrive_and_wait();
      const auto change = session.reconfigure(std::move(again[rank]));
      EXPECT_FALSE(change.repeat);
      if (rank == 1) result.joined = std::ranges::count(change.joined, 1) > 0;
      add_owed(result.after);
      values = gradient(kElements, place.rank, 1);
      session.begin_step();
      EXPECT_EQ(session.reduce(0, values).step, 2U);
      session.commit_step();
    });
  }
  ranks.clear();
  return result;
}

TEST(ReconfigureAfterALeave, ADebtThatAnHeirHasTakenOverCountsOnce) {
  bool joined = false;
  bool stayed = false;
  for (const FaultKind kind : {FaultKind::failed_send, FaultKind::failed_receive}) {
    for (std::uint64_t number = 0;; ++number) {
      SCOPED_TRACE(fmt::format("operation {} of kind {}", number, static_cast<int>(kind)));
      const Return result = leave_and_come_back({.kind = kind, .number = number});
      for (std::size_t i = 0; i < result.before.size(); ++i) {
        ASSERT_NEAR(result.after[i], result.before[i], 1e-5) << "element " << i;
      }
      (result.joined ? joined : stayed) = true;
      if (!result.struck) break;  // the commit has fewer messages
    }
  }
  EXPECT_TRUE(joined);
  EXPECT_TRUE(stayed);
}

TEST(ReconfigureErrors, StepsWithoutACommitAreNamed) {
  auto second = connect_threads(2);
  run_ranks(2, [&](std::unique_ptr<Transport> first) {
    Session session(std::move(first), {.spec = "topk"});
    const auto rank = static_cast<std::size_t>(session.rank());
    auto values = gradient(2000, session.rank(), 0);
    session.reduce(0, values);
    const auto before = session.save_bytes();
    // A rank of another run with the same options, at another step.
    if (rank == 1) session.forget(0);
    const auto text = thrown_text(ErrorCode::mismatch,
                                  [&] { (void)session.reconfigure(std::move(second[rank])); });
    EXPECT_NE(text.find("rank 1 stopped at another step"), std::string::npos) << text;
    if (rank == 0) {
      EXPECT_EQ(session.save_bytes(), before);
    }
  });
}

TEST(ReconfigureErrors, OtherOptionsAreNamed) {
  auto first = connect_threads(1);
  auto other = connect_threads(1);
  auto both = connect_threads(2);
  std::jthread joiner([&] {
    Session session(std::move(other[0]), {.spec = "topk:density=0.5"});
    thrown_text(ErrorCode::mismatch, [&] { (void)session.reconfigure(std::move(both[1])); });
  });
  Session session(std::move(first[0]), {.spec = "topk"});
  std::vector<float> values = gradient(2000, 0, 0);
  session.reduce(0, values);
  const auto text =
      thrown_text(ErrorCode::mismatch, [&] { (void)session.reconfigure(std::move(both[0])); });
  EXPECT_NE(text.find("density=0.5"), std::string::npos) << text;
  EXPECT_EQ(session.reduce(0, values).step, 2U);  // the old world goes on
}

TEST(SessionBroadcast, GivesAllRanksTheMessageOfOne) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {});
    for (const std::size_t size : {0U, 1U, 17'000'003U}) {
      const auto own = static_cast<std::byte>(session.rank() + 1);
      std::vector<std::byte> message(session.rank() == 1 ? size : 5, own);
      session.broadcast(1, message);
      EXPECT_TRUE(message == std::vector<std::byte>(size, std::byte{2})) << size;
    }
    std::vector<std::byte> none;
    thrown_text(ErrorCode::bad_input, [&] { session.broadcast(3, none); });
  });
}

}  // namespace
}  // namespace thinreduce::reconfigure_test

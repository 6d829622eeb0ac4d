// Ranks as threads that die, stumble, leave and join in the middle of a run, and the whole account
// of what they have reduced.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/faulty_transport.h"
#include "tests/links.h"
#include "tests/saved_bucket.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce {

// Members are numbered through the whole run; a rank is a member's place in one world.
struct ElasticEvent {
  enum class What { dies, stumbles, leaves, joins };
  What what = What::dies;
  int member = 0;
  std::uint64_t step = 0;
  std::uint64_t message = 0;  // of the step, at which it dies or stumbles; maybe in a later step
};

struct ElasticPlan {
  std::string spec;
  int members = 3;  // at the start
  std::uint64_t steps = 5;
  std::vector<ElasticEvent> events{};
};

// Where the living members meet to form a new world.
class Meeting {
 public:
  struct World {
    std::unique_ptr<Transport> transport;
    std::vector<int> members;         // in rank order
    std::set<std::uint64_t> invited;  // steps at which members have joined until now
  };

  Meeting(const ElasticPlan& plan) : plan_(plan), expected_(plan.members) {}

  // Waits until all living members are here.
  World meet(int member) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(member);
    close_if_complete();
    changed_.wait(lock, [&] { return ready_.contains(member); });
    World world = std::move(ready_.at(member));
    ready_.erase(member);
    return world;
  }
  // A member that is gone is not waited for.
  void leave() {
    const std::lock_guard lock(mutex_);
    --expected_;
    close_if_complete();
  }
  // From now on, those who join at this step are waited for.
  void invite(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (!invited_.insert(step).second) return;
    expected_ += joiners_at(step);
    changed_.notify_all();
  }
  void wait_for_invitation(std::uint64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return invited_.contains(step); });
  }
  [[nodiscard]] int joiners_at(std::uint64_t step) const {
    return static_cast<int>(std::ranges::count_if(plan_.events, [&](const ElasticEvent& event) {
      return event.what == ElasticEvent::What::joins && event.step == step;
    }));
  }

 private:
  void close_if_complete() {
    if (waiting_.empty() || static_cast<int>(waiting_.size()) < expected_) return;
    std::ranges::sort(waiting_);
    // Members change their ranks from world to world.
    if (++meetings_ % 2 == 0) std::ranges::reverse(waiting_);
    auto transports = connect_threads(expected_);
    for (std::size_t rank = 0; rank < waiting_.size(); ++rank) {
      ready_[waiting_[rank]] = {std::move(transports[rank]), waiting_, invited_};
    }
    waiting_.clear();
    changed_.notify_all();
  }

  const ElasticPlan& plan_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int expected_;
  int meetings_ = 0;
  std::vector<int> waiting_;
  std::set<std::uint64_t> invited_;
  std::map<int, World> ready_;
};

// A step as a member saw it.
struct ElasticStep {
  std::vector<int> world;                 // the members that took part, in rank order
  std::vector<std::vector<float>> means;  // by bucket
};

struct ElasticMember {
  std::map<std::uint64_t, ElasticStep> steps;
  std::vector<Reconfiguration> changes;
  std::set<int> lost;  // members that it was told are lost
  bool gone = false;   // died or left
  bool left = false;
  bool finished = false;  // all steps
  // The last state, and that at the beginning of the last step, with the place that they are for.
  std::vector<std::byte> state;
  std::vector<std::byte> before;
  std::uint64_t last_begun = 0;
  RankInWorld place;
};

inline constexpr std::size_t kElasticMinElements = 64;

inline std::vector<BucketLayout> elastic_layouts() {
  return {mixed_layout(0), {.id = 1, .elements = 3001, .tensors = {}}};
}

inline std::vector<float> elastic_gradient(const BucketLayout& layout, int member,
                                           std::uint64_t step) {
  return gradient(layout.elements, member, step * 8 + layout.id);
}

// One member's thread.
class ElasticRank {
 public:
  ElasticRank(const ElasticPlan& plan, Meeting& meeting, int member, ElasticMember& account)
      : plan_(plan), meeting_(meeting), member_(member), account_(account) {}

  void run() {
    const ElasticEvent* const joins = event(ElasticEvent::What::joins);
    if (joins != nullptr) meeting_.wait_for_invitation(joins->step);
    const SessionOptions options{.spec = plan_.spec,
                                 .timeout = Seconds(60),
                                 .patience = Seconds(120),
                                 .min_elements = kElasticMinElements,
                                 .check_replicas_every = 1,
                                 .link = kOwnerLink,
                                 .momentum_inside_ok = true};
    if (joins != nullptr) {
      session_ = std::make_unique<Session>(std::move(connect_threads(1)[0]), options);
      if (!reconfigure()) return;
    } else {
      auto world = meeting_.meet(member_);
      world_ = world.members;
      transport_ = std::make_shared<FaultyTransport>(std::move(world.transport));
      session_ = std::make_unique<Session>(transport_, options);
    }
    for (const BucketLayout& layout : elastic_layouts()) {
      buckets_.push_back(session_->add_bucket(layout));
    }
    while (step_ < plan_.steps) {
      if (!one_step()) return;
    }
    account_.state = session_->save_bytes();
    account_.place = {session_->rank(), session_->size()};
    account_.finished = true;
    meeting_.leave();  // others may have lost a rank after the last step
  }

 private:
  [[nodiscard]] const ElasticEvent* event(ElasticEvent::What what) const {
    for (const ElasticEvent& event : plan_.events) {
      if (event.what == what && event.member == member_) return &event;
    }
    return nullptr;
  }
  [[nodiscard]] bool is_due(ElasticEvent::What what) const {
    const ElasticEvent* const found = event(what);
    return found != nullptr && step_ >= found->step;
  }

  void arm() {
    const bool dies = is_due(ElasticEvent::What::dies);
    if (!dies && (stumbled_ || !is_due(ElasticEvent::What::stumbles))) return;
    if (armed_) return;
    armed_ = true;
    stumbled_ = stumbled_ || !dies;
    const auto* const due = event(dies ? ElasticEvent::What::dies : ElasticEvent::What::stumbles);
    transport_->arm(
        {.kind = dies ? FaultKind::lost_send : FaultKind::failed_receive, .number = due->message});
  }

  // Returns false if the member is gone.
  bool one_step() {
    if (meeting_.joiners_at(step_) > 0 && !invited_.contains(step_)) {
      meeting_.invite(step_);
      return reconfigure();
    }
    account_.before = session_->save_bytes();
    account_.place = {session_->rank(), session_->size()};
    account_.last_begun = step_;
    session_->begin_step();
    ElasticStep done{.world = world_, .means = {}};
    const bool leaves = is_due(ElasticEvent::What::leaves) && world_.size() > 1;
    try {
      reduce(done);
      (void)session_->commit_step(leaves);
    } catch (const Error& error) {
      account_.state = session_->save_bytes();
      if (!reconfigure()) return false;
      if (account_.changes.back().repeat) return true;
      EXPECT_EQ(account_.changes.back().steps, step_ + 1);
      return finish(std::move(done), false);
    }
    return finish(std::move(done), leaves);
  }

  void reduce(ElasticStep& done) {
    arm();
    std::vector<std::future<Report>> pending;
    for (const BucketHandle& bucket : buckets_) {
      done.means.push_back(elastic_gradient(bucket.layout(), member_, step_));
    }
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      pending.push_back(session_->submit(buckets_[i], done.means[i]));
    }
    for (auto& one : pending) one.get();
  }

  bool finish(ElasticStep done, bool leaves) {
    account_.steps[step_++] = std::move(done);
    if (!leaves) return true;
    account_.gone = account_.left = true;
    session_.reset();
    transport_.reset();
    meeting_.leave();
    return false;
  }

  // Meets the others until a new world is there. Returns false if this member dies.
  bool reconfigure() {
    const bool dies = is_due(ElasticEvent::What::dies);
    for (;;) {
      const bool lost_for_good = account_.changes.size() > 20 + 4 * plan_.events.size();
      EXPECT_FALSE(lost_for_good) << "member " << member_ << " does not get on";
      if (lost_for_good || (armed_ && dies && transport_->peer() >= 0)) {
        account_.gone = true;
        session_.reset();
        transport_.reset();
        meeting_.leave();
        return false;
      }
      armed_ = armed_ && dies;
      auto world = meeting_.meet(member_);
      invited_ = world.invited;
      auto next = std::make_shared<FaultyTransport>(std::move(world.transport));
      if (armed_ && dies) {
        next->arm(
            {.kind = FaultKind::lost_send, .number = event(ElasticEvent::What::dies)->message % 6});
      }
      try {
        account_.changes.push_back(session_->reconfigure(next));
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::lost_peer)) << error.what();
        transport_ = next;
        continue;
      }
      const Reconfiguration& change = account_.changes.back();
      for (const int old : change.lost) {
        if (!world_.empty()) account_.lost.insert(world_.at(static_cast<std::size_t>(old)));
      }
      if (world_.empty()) step_ = change.steps;
      EXPECT_EQ(change.steps - step_, change.steps > step_ ? 1U : 0U);
      world_ = world.members;
      transport_ = std::move(next);
      return true;
    }
  }

  const ElasticPlan& plan_;
  Meeting& meeting_;
  const int member_;
  ElasticMember& account_;
  std::vector<int> world_;
  std::set<std::uint64_t> invited_;
  std::shared_ptr<FaultyTransport> transport_ =
      std::make_shared<FaultyTransport>(std::move(connect_threads(1)[0]));
  std::unique_ptr<Session> session_;
  std::vector<BucketHandle> buckets_;
  std::uint64_t step_ = 0;
  bool armed_ = false;
  bool stumbled_ = false;
};

// Returns the accounts of all members.
inline std::vector<ElasticMember> run_elastic(const ElasticPlan& plan) {
  const auto joiners = std::ranges::count_if(plan.events, [](const ElasticEvent& event) {
    return event.what == ElasticEvent::What::joins;
  });
  std::vector<ElasticMember> accounts(static_cast<std::size_t>(plan.members + joiners));
  Meeting meeting(plan);
  std::vector<std::jthread> threads;
  for (std::size_t member = 0; member < accounts.size(); ++member) {
    threads.emplace_back([&, member] {
      ElasticRank(plan, meeting, static_cast<int>(member), accounts[member]).run();
    });
  }
  threads.clear();
  return accounts;
}

// Returns every step as all who completed it saw it: with the same world and the same bits.
inline std::map<std::uint64_t, ElasticStep> agreed_steps(
    const std::vector<ElasticMember>& accounts) {
  std::map<std::uint64_t, ElasticStep> agreed;
  for (const ElasticMember& account : accounts) {
    for (const auto& [step, seen] : account.steps) {
      const auto& first = agreed.emplace(step, seen).first->second;
      EXPECT_EQ(seen.world, first.world) << "step " << step;
      EXPECT_EQ(seen.means, first.means) << "step " << step;
    }
  }
  return agreed;
}

}  // namespace thinreduce

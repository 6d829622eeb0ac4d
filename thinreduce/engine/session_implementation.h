// The inside of a session: its buckets in flight, its state, and its part in changes of the world.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/engine/flights.h"
#include "thinreduce/engine/membership.h"
#include "thinreduce/engine/reducer.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/plan/planner.h"

namespace thinreduce {

class Session::Implementation {
 public:
  Implementation(std::shared_ptr<Transport> transport, const SessionOptions& options);

  // Returns whether this is the process that made it, and not a forked child without its threads.
  [[nodiscard]] bool here() const { return ::getpid() == creator_; }

  [[nodiscard]] std::shared_ptr<const RegisteredBucket> add_bucket(BucketLayout layout) const;

  // Takes note that this rank takes part from now on, if it has joined others.
  void take_part() { just_joined_ = false; }

  // Returns the submitted buckets, those in flight included.
  [[nodiscard]] Flights& flights() {
    require_own_process();
    return *flights_;
  }

  // Waits until no bucket is in flight. The caller may then use the transport and the reducer.
  void drain() { flights().drain(); }

  // Waits until no bucket is in flight and returns the reducer.
  Reducer& idle_reducer() {
    drain();
    return reducer_;
  }

  void begin_step() {
    idle_reducer().begin_step();
    flights().begin_step();
    phase_ = StepPhase::begun;
  }
  void undo_step() { idle_reducer().undo_step(); }

  // Replaces `message` by the root's.
  void broadcast(int root, std::vector<std::byte>& message);

  // Returns the ranks that leave.
  std::vector<int> commit_step(bool leave);

  // Goes on where a session of another world, or of none, has stopped.
  Reconfiguration continue_from(Implementation& old);

  [[nodiscard]] const SessionOptions& options() const { return options_; }

  SessionState save();

  // Throws Error{bad_state}; `what` names the state in the message.
  void load(const SessionState& state, const std::string& what);

  Transport& transport() { return *transport_; }
  [[nodiscard]] const std::optional<Planner>& planner() const { return planner_; }

  void forget(std::uint32_t id);

 private:
  // Compares the settings of all ranks, and measures the link between them.
  void meet_others();

  // Gives the states of ranks that leave to their heirs.
  void hand_over(Exchange& exchange, const std::vector<int>& leaving);

  // Returns what this session tells the ranks of a new world.
  [[nodiscard]] Member member() const;

  // Takes back the step that this rank has begun, unless all have completed it.
  void go_back_to(std::uint64_t steps);

  void require_own_process() const;

  std::shared_ptr<Transport> transport_;
  const pid_t creator_ = ::getpid();
  SessionOptions options_;
  Spec spec_;
  std::string settings_;
  WorkerPool pool_;
  std::optional<Planner> planner_;  // with the spec `auto`
  Reducer reducer_;
  std::uint64_t steps_ = 0;  // that this rank has reduced completely; see commit_step()
  StepPhase phase_ = StepPhase::none;
  bool just_joined_ = false;  // and has submitted nothing since
  MemberId id_ = new_member_id();
  std::vector<MemberId> world_;                 // in rank order
  std::map<MemberId, SessionState> inherited_;  // from ranks that leave, until the next world
  std::vector<MemberId> took_over_;             // ranks that left, whose debts this one has
  std::optional<Flights> flights_;              // the last member: its threads use the others
};

}  // namespace thinreduce

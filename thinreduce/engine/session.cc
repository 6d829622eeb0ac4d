#include "thinreduce/engine/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/engine/advice.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/engine/flights.h"
#include "thinreduce/engine/handover.h"
#include "thinreduce/engine/membership.h"
#include "thinreduce/engine/probe.h"
#include "thinreduce/engine/reducer.h"
#include "thinreduce/engine/settings.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/plan/planner.h"

namespace thinreduce {
namespace {

constexpr std::uint32_t kNoBucket = 0xFFFFFFFF;

Error refusal_of(const BucketLayout& layout, const Refusal& refusal) {
  return Error(ErrorCode::bad_input,
               fmt::format("bucket {}: {}", layout.id, describe_refusal(refusal, layout.elements)));
}

}  // namespace

class Session::Worker {
 public:
  Worker(std::shared_ptr<Transport> transport, const SessionOptions& options)
      : transport_(std::move(transport)),
        options_(options),
        spec_(checked_spec(options.spec, options)),
        settings_(settings_text(spec_, options)),
        pool_(checked_threads(options)),
        reducer_(*transport_, options_, pool_) {
    if (spec_.is_auto()) planner_.emplace(auto_options(spec_), transport_->size());
    reducer_.set_planner(planner_ ? &*planner_ : nullptr);
    options_.limits().check();
    meet_others();
    flights_.emplace(*transport_, reducer_, planner_.has_value());
  }

  // Returns whether this is the process that made it, and not a forked child without its threads.
  [[nodiscard]] bool here() const { return ::getpid() == owner_; }

  [[nodiscard]] std::shared_ptr<const RegisteredBucket> add_bucket(BucketLayout layout) const {
    Spec spec = layout.spec.empty() ? spec_ : checked_spec(layout.spec, options_);
    if (spec.is_auto() && spec.full_text() != spec_.full_text()) {
      throw Error(ErrorCode::bad_spec,
                  fmt::format("bucket {} has the spec '{}', the session '{}'; give 'auto' to the "
                              "whole session",
                              layout.id, layout.spec, spec_.full_text()));
    }
    return std::make_shared<RegisteredBucket>(std::move(layout), std::move(spec),
                                              options_.min_elements);
  }

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
    phase_ = StepPhase::begun;
  }
  void undo_step() { idle_reducer().undo_step(); }

  // Replaces `message` by the root's.
  void broadcast(int root, std::vector<std::byte>& message) {
    drain();
    flights_->require_alive();
    if (root < 0 || root >= transport_->size()) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("root must be 0 to {}, got {}", transport_->size() - 1, root));
    }
    try {
      Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = steps_});
      broadcast_message(exchange, root, message);
    } catch (const Error& error) {
      throw flights_->fail(with_advice(error));
    }
  }

  // Returns the ranks that leave.
  std::vector<int> commit_step(bool leave) {
    drain();
    flights_->require_alive();
    phase_ = StepPhase::reduced;
    ++steps_;
    try {
      Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = steps_});
      const auto own = std::as_bytes(std::span(&leave, leave ? 1 : 0));
      std::vector<int> leaving;
      gather(exchange, own, sizeof leave, [&](int rank, std::span<const std::byte> flag) {
        if (!flag.empty()) leaving.push_back(rank);
      });
      phase_ = StepPhase::none;
      if (!leaving.empty()) hand_over(exchange, leaving);
      return leaving;
    } catch (const Error& error) {
      throw flights_->fail(with_advice(error));
    }
  }

  // Goes on where a session of another world, or of none, has stopped.
  Reconfiguration continue_from(Worker& old) {
    Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = 1});
    const std::vector<Member> members = gather_members(exchange, old.member());
    Reconfiguration outcome = describe_change(members, exchange.rank());
    const Member& own = members[static_cast<std::size_t>(exchange.rank())];
    if (!own.joins()) old.go_back_to(outcome.steps);
    outcome.repeat = !own.joins() && old.phase_ == StepPhase::begun;
    SessionState state = old.save();
    compare_progress(exchange, members, state);
    took_over_ = own.took_over;
    for (const auto& [id, left] : old.inherited_) {
      const auto has_id = [id = id](const Member& member) { return member.id == id; };
      if (own.joins() || std::ranges::any_of(members, has_id)) continue;  // it has stayed
      take_over(state, left);
      took_over_.push_back(id);
    }
    exchange_states(exchange, members, state);
    reducer_.load(state);
    just_joined_ = own.joins();
    id_ = own.id;
    world_.clear();
    for (const Member& member : members) world_.push_back(member.id);
    steps_ = outcome.steps;
    // If what the caller does next fails, the step is still one to repeat.
    if (outcome.repeat) phase_ = StepPhase::begun;
    return outcome;
  }

  [[nodiscard]] const SessionOptions& options() const { return options_; }

  SessionState save() {
    drain();
    SessionState state = reducer_.save();
    state.world = transport_->size();
    state.rank = transport_->rank();
    state.settings = settings_;
    return state;
  }

  // Throws Error{bad_state}; `what` names the state in the message.
  void load(const SessionState& state, const std::string& what) {
    drain();
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::bad_state, fmt::format("{}: {}", what, why));
    };
    if (state.world != transport_->size()) {
      refuse(
          fmt::format("it was saved in a world of {} ranks, this one has {}; redistribute() "
                      "converts states",
                      state.world, transport_->size()));
    }
    if (state.rank != transport_->rank()) {
      refuse(fmt::format("it belongs to rank {}, this is rank {}; load the state of rank {}",
                         state.rank, transport_->rank(), transport_->rank()));
    }
    if (state.settings != settings_) {
      refuse(
          fmt::format("it was saved with '{}', this session has '{}'; create the session with the "
                      "saved settings",
                      state.settings, settings_));
    }
    reducer_.load(state);
  }

  Transport& transport() { return *transport_; }
  [[nodiscard]] const std::optional<Planner>& planner() const { return planner_; }

  void forget(std::uint32_t id) {
    idle_reducer().forget(id);
    flights_->forget(id);
    if (planner_) planner_->forget(id);
  }

 private:
  // Compares the settings of all ranks, and measures the link between them.
  void meet_others() {
    const auto& own = options_.caller_settings;
    std::vector<std::string> all;
    Link link;
    try {
      Exchange texts(*transport_, options_.limits(), {.bucket = kNoBucket});
      all = gather_texts(texts, settings_ + guard_text(options_) + (own.empty() ? "" : " " + own));
      require_equal(all);
      Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket});
      world_ = gather_ids(exchange, id_);
      link = agree_on_link(*transport_, options_.limits(), options_.link);
    } catch (const Error& error) {
      const bool advise = all.empty() || error.code() == ErrorCode::bad_frame;
      const Error told = advise ? with_advice(error) : error;
      // All ranks find a mismatch by themselves.
      if (told.code() != ErrorCode::mismatch) transport_->abandon(told.what());
      throw told;
    }
    reducer_.set_link(link);
  }

  // Gives the states of ranks that leave to their heirs.
  void hand_over(Exchange& exchange, const std::vector<int>& leaving) {
    std::vector<std::vector<std::byte>> outgoing(static_cast<std::size_t>(exchange.size()));
    if (std::ranges::find(leaving, exchange.rank()) != leaving.end()) {
      const int heir = heir_of(exchange.rank(), leaving, exchange.size());
      if (heir >= 0) outgoing[static_cast<std::size_t>(heir)] = encode_state(save());
    }
    const auto incoming = exchange_messages(exchange, outgoing);
    for (const int rank : leaving) {
      const auto& bytes = incoming[static_cast<std::size_t>(rank)];
      if (heir_of(rank, leaving, exchange.size()) != exchange.rank()) continue;
      inherited_[world_[static_cast<std::size_t>(rank)]] =
          decode_state(bytes, fmt::format("state of rank {}, which leaves", rank));
    }
  }

  // Returns what this session tells the ranks of a new world.
  [[nodiscard]] Member member() const {
    // A rank that has joined and done nothing since has the state of others, and owes nothing.
    const bool is_new = transport_->size() == 1 && steps_ == 0 && reducer_.is_new();
    const bool joins = is_new || just_joined_;
    Member own{.id = id_, .steps = steps_, .phase = phase_, .took_over = took_over_};
    if (!joins) own.old_world = world_;
    for (const auto& [id, state] : inherited_) own.heir_of.push_back(id);
    return own;
  }

  // Takes back the step that this rank has begun, unless all have completed it.
  void go_back_to(std::uint64_t steps) {
    if (steps_ > steps) {
      --steps_;
      phase_ = StepPhase::begun;
    }
    if (phase_ == StepPhase::begun) idle_reducer().undo_step();
  }

  void require_own_process() const {
    if (here()) return;
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {}: the session belongs to process {}, this is its forked child "
                            "{}; create a session of its own",
                            transport_->rank(), owner_, ::getpid()));
  }

  std::shared_ptr<Transport> transport_;
  const pid_t owner_ = ::getpid();
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

Session::Session(std::shared_ptr<Transport> transport, const SessionOptions& options)
    : worker_(std::make_unique<Worker>(std::move(transport), options)) {}

Session::~Session() {
  if (!worker_->here()) static_cast<void>(worker_.release());
}

int Session::rank() const {
  return worker_->transport().rank();
}
int Session::size() const {
  return worker_->transport().size();
}

const BucketLayout& BucketHandle::layout() const {
  return bucket_->layout;
}

BucketHandle Session::add_bucket(BucketLayout layout) const {
  return {worker_->add_bucket(std::move(layout)), this};
}

std::future<Report> Session::submit(const BucketHandle& bucket, std::span<float> values,
                                    std::span<const float> second_moment) {
  Flights& flights = worker_->flights();
  worker_->take_part();
  const std::size_t elements = bucket.layout().elements;
  Job job;
  job.bucket = bucket.bucket_;
  job.submitted = worker_->transport().hand_over();
  if (bucket.session_ != this) {
    job.refusal = {.why = Numbers::foreign_handle};
  } else if (values.size() != elements) {
    job.refusal = {.why = Numbers::gradient_missized, .given = values.size()};
  } else if (!second_moment.empty() && second_moment.size() != elements) {
    job.refusal = {.why = Numbers::second_moment_missized, .given = second_moment.size()};
  }
  if (!job.refusal) {
    job.values = values;
    job.second_moment = second_moment;
    return flights.submit(std::move(job));
  }
  // The other ranks wait for this rank's statement about the bucket: it tells them of the refusal.
  const Error error = refusal_of(bucket.layout(), *job.refusal);
  static_cast<void>(flights.submit(std::move(job)));
  throw error;
}

void Session::decline(const std::string& reason) {
  // A planner counts the buckets of a step by their ids, and this rank has none.
  if (worker_->planner()) return abandon(reason);
  Job job;
  job.bucket = worker_->add_bucket({.id = kNoBucket, .elements = 0, .tensors = {}, .spec = "fp32"});
  job.submitted = worker_->transport().hand_over();
  job.refusal = {.why = Numbers::declined, .reason = reason};
  static_cast<void>(worker_->flights().submit(std::move(job)));
}

Report Session::reduce(std::uint32_t id, std::span<float> values,
                       std::span<const float> second_moment) {
  auto found = shapeless_.find(id);
  if (found == shapeless_.end() || found->second.layout().elements != values.size()) {
    const auto bucket = add_bucket({.id = id, .elements = values.size(), .tensors = {}});
    found = shapeless_.insert_or_assign(id, bucket).first;
  }
  Report report = submit(found->second, values, second_moment).get();
  static_cast<void>(worker_->transport().now());  // a virtual clock must know that this rank waited
  return report;
}

Report Session::finish_step() {
  worker_->drain();
  return worker_->flights().take_reports();
}
void Session::begin_step() {
  worker_->begin_step();
}
void Session::undo_step() {
  worker_->undo_step();
}
std::vector<int> Session::commit_step(bool leave) {
  return worker_->commit_step(leave);
}

void Session::broadcast(int root, std::vector<std::byte>& message) {
  worker_->broadcast(root, message);
}

Reconfiguration Session::reconfigure(std::shared_ptr<Transport> transport) {
  const auto started = Clock::now();
  worker_->drain();
  try {
    auto next = std::make_unique<Worker>(transport, worker_->options());
    Reconfiguration outcome = next->continue_from(*worker_);
    worker_ = std::move(next);
    outcome.seconds = Seconds(Clock::now() - started).count();
    return outcome;
  } catch (const Error& error) {
    // The others must not wait for this rank. A mismatch they find themselves.
    if (error.code() != ErrorCode::mismatch) transport->abandon(error.what());
    throw;
  }
}
void Session::forget(std::uint32_t id) {
  worker_->forget(id);
  shapeless_.erase(id);
}
void Session::save(const std::filesystem::path& file) {
  write_state(file, worker_->save());
}
void Session::load(const std::filesystem::path& file) {
  worker_->load(read_state(file), state_file_name(file));
}
std::vector<std::byte> Session::save_bytes() {
  return encode_state(worker_->save());
}
void Session::load_bytes(std::span<const std::byte> bytes) {
  const std::string name = "saved state";
  worker_->load(decode_state(bytes, name), name);
}
Plan Session::plan() const {
  return worker_->planner() ? worker_->planner()->plan() : Plan{};
}
void Session::abandon(const std::string& reason) {
  worker_->flights().abandon(reason);
}

}  // namespace thinreduce

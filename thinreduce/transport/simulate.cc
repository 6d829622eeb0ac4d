#include "thinreduce/transport/simulate.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "thinreduce/ensure.h"
#include "thinreduce/transport/busy_times.h"
#include "thinreduce/transport/turns.h"

namespace thinreduce {
namespace {

using Time = std::chrono::nanoseconds;

Time to_time(Seconds seconds) {
  return std::chrono::duration_cast<Time>(seconds);
}

Clock::time_point to_point(Time time) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(time));
}

// Information about a message that the receiver gets beside its bytes.
struct Stamp {
  Time arrives{0};
  std::uint64_t chain = 0;  // length of the longest chain of messages that ends with this one
};

// Messages from one rank to another on one channel. The n-th receive gets the n-th message.
struct Stream {
  std::uint64_t sent = 0;
  std::uint64_t posted = 0;                         // receives
  std::unordered_map<std::uint64_t, Stamp> stamps;  // of messages not yet received, by number
};

// One thread of a rank: the one that has the transport itself, or one that has a track.
struct Course {
  Time clock{0};
  std::unordered_map<std::thread::id, Time> threads;  // CPU time at the last look at the clock
  std::uint64_t chain = 0;
  // The latest time and the longest chain of the results that tracks have delivered here.
  Time delivered{0};
  std::uint64_t delivered_chain = 0;
  bool has_core = false;
  // The message that it waits for without a core: to be sent, or to be asked for.
  const Stream* awaited = nullptr;
  std::uint64_t awaited_number = 0;
  Turns::Waiter waiter;
};

struct Rank {
  Link link;
  BusyTimes computing;  // all courses share one core
  BusyTimes sending;
  BusyTimes receiving;
  std::map<int, Course> courses;  // by track, the transport itself at 0; references stay valid
  bool aligning = false;          // waits in align() without a core
};

// One direction of a path between regions.
struct Crossing {
  RankRange from;
  RankRange to;
  Link link;
  BusyTimes busy;
};

// The state that all ranks share. One lock is enough: only few ranks run at once.
struct Cluster {
  Cluster(std::size_t world, const ClusterOptions& settings, int cores)
      : options(settings), ranks(world), turns(cores) {
    for (const RegionPath& path : settings.links.paths) {
      crossings.push_back({path.one, path.other, path.link, {}});
      crossings.push_back({path.other, path.one, path.link, {}});
    }
  }

  // Returns the path that a message takes between regions; null within a region.
  Crossing* crossing(int from, int to) {
    const auto found = std::ranges::find_if(
        crossings, [&](const Crossing& one) { return one.from.holds(from) && one.to.holds(to); });
    return found == crossings.end() ? nullptr : &*found;
  }

  Stream& stream(int from, int to, Channel channel) {
    const auto world = static_cast<std::uint64_t>(ranks.size());
    return streams[(static_cast<std::uint64_t>(channel) * world +
                    static_cast<std::uint64_t>(from)) *
                       world +
                   static_cast<std::uint64_t>(to)];
  }

  // Queues the course that waits for a message of this stream for a core if `count`, the number of
  // those that are ready, includes it.
  void wake(Rank& rank, const Stream& stream, std::uint64_t count) {
    for (auto& [track, course] : rank.courses) {
      if (course.awaited != &stream || course.awaited_number >= count) continue;
      course.awaited = nullptr;
      turns.queue(course.clock, course.waiter);
    }
  }

  // Lets all ranks that wait in align() go on.
  void end_alignment() {
    for (Rank& rank : ranks) {
      Course& course = rank.courses[0];
      if (std::exchange(rank.aligning, false)) turns.queue(course.clock, course.waiter);
    }
  }

  // From now on every wait is the inner transport's, which knows the ranks that failed or left.
  void end() {
    const std::lock_guard lock(mutex);
    over = true;
    for (Rank& rank : ranks) {
      for (auto& [track, course] : rank.courses) {
        const bool waits = std::exchange(course.awaited, nullptr) != nullptr;
        if (waits) turns.queue(course.clock, course.waiter);
      }
    }
    end_alignment();
  }

  bool over = false;
  ClusterOptions options;
  std::mutex mutex;
  std::vector<Rank> ranks;
  std::vector<Crossing> crossings;
  std::unordered_map<std::uint64_t, Stream> streams;  // references stay valid
  Turns turns;
};

// A rank's view of the cluster, on the transport itself (track 0) or on a track.
class Machine {
 public:
  Machine(std::shared_ptr<Cluster> cluster, int rank, int track)
      : cluster_(std::move(cluster)),
        rank_(rank),
        track_(track),
        own_(cluster_->ranks[static_cast<std::size_t>(rank)]),
        course_(open_course()) {}

  [[nodiscard]] const std::shared_ptr<Cluster>& cluster_pointer() const { return cluster_; }
  [[nodiscard]] Cluster& cluster() const { return *cluster_; }
  [[nodiscard]] Rank& own() const { return own_; }
  [[nodiscard]] Course& course() const { return course_; }
  [[nodiscard]] Stream& incoming(int peer, Channel channel) const {
    return cluster_->stream(peer, rank_, on_track(track_, channel));
  }
  [[nodiscard]] Stream& outgoing(int peer, Channel channel) const {
    return cluster_->stream(rank_, peer, on_track(track_, channel));
  }

  // Moves the clock on by the CPU time of this thread since its last call, for which the rank's
  // core must be free. The caller holds the lock.
  Time advance() const {
    const Time used = cluster_->options.cpu_time();
    const auto [known, is_new] = course_.threads.try_emplace(std::this_thread::get_id(), used);
    // A new thread may have the id of one that has ended; its CPU time starts again at 0.
    const Time work = used >= known->second ? used - known->second : used;
    if (!is_new) course_.clock = own_.computing.take(course_.clock, work);
    known->second = used;
    return course_.clock;
  }

  // Counts `elapsed` instead of `own`, a part of this thread's CPU time since the last look at the
  // clock. The caller holds the lock.
  void share_work(Time own, Time elapsed) const {
    const auto known = course_.threads.find(std::this_thread::get_id());
    if (known != course_.threads.end()) known->second += own - elapsed;
    advance();
  }

  // Waits for the delivered results, as far as clocks are concerned. The caller holds the lock.
  void catch_up() const {
    course_.clock = std::max(course_.clock, course_.delivered);
    course_.chain = std::max(course_.chain, course_.delivered_chain);
  }

  // Queues the peer for a core if it waits for this. The caller holds the lock.
  void wake(int peer, const Stream& stream, std::uint64_t count) const {
    cluster_->wake(cluster_->ranks[static_cast<std::size_t>(peer)], stream, count);
  }

  // Sends `bytes` at the current time; returns the stamp of the message. The caller holds the lock.
  [[nodiscard]] Stamp post(int peer, std::size_t bytes) const {
    Rank& to = cluster_->ranks[static_cast<std::size_t>(peer)];
    const Time clock = advance();
    Span span = pass({clock, clock}, own_.sending, duration(own_.link, bytes));
    Seconds latency = std::max(own_.link.latency, to.link.latency);
    if (Crossing* crossing = cluster_->crossing(rank_, peer)) {
      latency = std::max(latency, crossing->link.latency);
      span = pass(span, crossing->busy, duration(crossing->link, bytes));
    }
    span.first += to_time(latency);
    span.last += to_time(latency);
    return {pass(span, to.receiving, duration(to.link, bytes)).last, course_.chain + 1};
  }

  // Waits without a core until `count`, a counter of the stream, is above `number`, then calls
  // `inner`, which waits for the message itself.
  template <typename Inner>
  void wait(const Stream& stream, const std::uint64_t& count, std::uint64_t number,
            Inner&& inner) const {
    std::unique_lock lock(cluster_->mutex);
    advance();
    if (count <= number && !cluster_->over) {
      course_.awaited = &stream;
      course_.awaited_number = number;
      give_core();
      lock.unlock();
      wait_for_core();
      lock.lock();
    }
    const bool soon = count > number;
    lock.unlock();
    if (soon) return inner();
    give_core();
    try {
      inner();
    } catch (...) {
      take_core();
      throw;
    }
    take_core();
  }

  void align() const {
    std::unique_lock lock(cluster_->mutex);
    catch_up();
    advance();
    if (cluster_->over) return;
    auto& ranks = cluster_->ranks;
    own_.aligning = true;
    if (!std::ranges::all_of(ranks, &Rank::aligning)) {
      give_core();
      lock.unlock();
      return wait_for_core();
    }
    own_.aligning = false;  // keeps its core
    Time latest{0};
    for (Rank& rank : ranks) latest = std::max(latest, rank.courses[0].clock);
    for (Rank& rank : ranks) rank.courses[0].clock = latest;
    cluster_->end_alignment();
  }

  void take_core() const {
    {
      const std::lock_guard lock(cluster_->mutex);
      cluster_->turns.queue(course_.clock, course_.waiter);
    }
    wait_for_core();
  }
  void give_core() const {
    if (std::exchange(course_.has_core, false)) cluster_->turns.give();
  }

 private:
  Course& open_course() const {
    const std::lock_guard lock(cluster_->mutex);
    return own_.courses[track_];
  }
  void wait_for_core() const {
    cluster_->turns.wait(course_.waiter);
    course_.has_core = true;
    // Going to sleep and waking up is no work of the rank.
    const std::lock_guard lock(cluster_->mutex);
    course_.threads[std::this_thread::get_id()] = cluster_->options.cpu_time();
  }

  // When the first byte of a message passes a place, and the last.
  struct Span {
    Time first{0};
    Time last{0};
  };
  // Cut-through: the first byte leaves a link before the last has reached it. A link that is faster
  // than the one before it waits for the last byte.
  static Span pass(Span arriving, BusyTimes& link, Time length) {
    const Time done = link.take(std::max(arriving.first, arriving.last - length), length);
    const Time last = std::max(arriving.last, done);
    return {last - length, last};
  }

  static Time duration(const Link& link, std::size_t bytes) {
    if (link.bytes_per_second <= 0) return Time::zero();
    return to_time(Seconds(static_cast<double>(bytes) / link.bytes_per_second));
  }

  std::shared_ptr<Cluster> cluster_;
  int rank_;
  int track_;
  Rank& own_;
  Course& course_;
};

// Real time: a peer that fails ends every wait, so this only guards against a bug.
Deadline no_deadline() {
  return Deadline::after(std::chrono::hours(24));
}

class SimulatedSend final : public Operation {
 public:
  SimulatedSend(const Machine& machine, const Stream& stream, std::uint64_t number, Pending inner)
      : machine_(machine), stream_(stream), number_(number), inner_(std::move(inner)) {}

  // The sender's clock goes on at once, as if the message were buffered.
  void wait(const Deadline& /*deadline*/) override {
    machine_.wait(stream_, stream_.posted, number_, [&] { inner_->wait(no_deadline()); });
  }

 private:
  const Machine& machine_;
  const Stream& stream_;
  std::uint64_t number_;
  Pending inner_;
};

class SimulatedReceive final : public Operation {
 public:
  SimulatedReceive(const Machine& machine, Stream& stream, std::uint64_t number, Pending inner)
      : machine_(machine), stream_(stream), number_(number), inner_(std::move(inner)) {}

  void wait(const Deadline& /*deadline*/) override {
    machine_.wait(stream_, stream_.sent, number_, [&] { inner_->wait(no_deadline()); });
    const std::lock_guard lock(machine_.cluster().mutex);
    const auto found = stream_.stamps.find(number_);
    ensure(found != stream_.stamps.end(), "a message that was received has a stamp");
    Course& course = machine_.course();
    course.clock = std::max(course.clock, found->second.arrives);
    course.chain = std::max(course.chain, found->second.chain);
    stream_.stamps.erase(found);
  }

 private:
  const Machine& machine_;
  Stream& stream_;
  std::uint64_t number_;
  Pending inner_;
};

class Simulated final : public SimulatedTransport {
 public:
  Simulated(std::shared_ptr<Cluster> cluster, std::unique_ptr<Transport> inner, int track)
      : machine_(std::move(cluster), inner->rank(), track),
        is_track_(track > 0),
        inner_(std::move(inner)) {}
  ~Simulated() override {
    if (!is_track_) machine_.cluster().end();
    machine_.give_core();
  }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override {
    inner_->abandon(reason);
    machine_.cluster().end();
  }

  [[nodiscard]] Clock::time_point now() const override {
    const std::lock_guard lock(machine_.cluster().mutex);
    machine_.catch_up();
    return to_point(machine_.advance());
  }
  [[nodiscard]] std::unique_ptr<Transport> open_track(int number) override {
    auto track =
        std::make_unique<Simulated>(machine_.cluster_pointer(), inner_->open_track(number), number);
    track->count_in(*this);
    return track;
  }
  // A thread that hands its work over, or that waits for the next, must not keep a core.
  Moment hand_over() override {
    std::unique_lock lock(machine_.cluster().mutex);
    const Clock::time_point time = to_point(machine_.advance());
    const std::uint64_t chain = machine_.course().chain;
    lock.unlock();
    machine_.give_core();
    return {.time = time, .chain = chain};
  }
  void go_on_from(const Moment& moment) override {
    const Time time = std::chrono::duration_cast<Time>(moment.time.time_since_epoch());
    {
      const std::lock_guard lock(machine_.cluster().mutex);
      Course& course = machine_.course();
      course.delivered = std::max(course.delivered, time);
      course.delivered_chain = std::max(course.delivered_chain, moment.chain);
      // The thread that delivers a result calls this on the transport itself, whose own thread may
      // still hand over other work. It catches up when it looks at its clock.
      if (!is_track_) return;
      machine_.catch_up();
    }
    machine_.take_core();
  }
  [[nodiscard]] std::optional<Time> counted_time() const override {
    return machine_.cluster().options.cpu_time();
  }
  void share_work(Time own, Time elapsed) override {
    const std::lock_guard lock(machine_.cluster().mutex);
    machine_.share_work(own, elapsed);
  }
  void align() override { machine_.align(); }
  void set_link(const Link& link) override {
    const std::lock_guard lock(machine_.cluster().mutex);
    machine_.own().link = link;
  }
  void begin_chain() override {
    const std::lock_guard lock(machine_.cluster().mutex);
    for (auto& [track, course] : machine_.own().courses) course.chain = course.delivered_chain = 0;
  }
  [[nodiscard]] std::uint64_t longest_chain() const override {
    const std::lock_guard lock(machine_.cluster().mutex);
    machine_.catch_up();
    return machine_.course().chain;
  }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    std::unique_lock lock(machine_.cluster().mutex);
    Stream& stream = machine_.outgoing(peer, channel);
    const std::uint64_t number = stream.sent++;
    // Before the message, so that the receiver finds it.
    stream.stamps[number] = machine_.post(peer, message.size());
    machine_.wake(peer, stream, stream.sent);
    lock.unlock();
    return std::make_unique<SimulatedSend>(machine_, stream, number,
                                           inner_->send(peer, channel, message));
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    std::unique_lock lock(machine_.cluster().mutex);
    Stream& stream = machine_.incoming(peer, channel);
    const std::uint64_t number = stream.posted++;
    machine_.wake(peer, stream, stream.posted);
    lock.unlock();
    return std::make_unique<SimulatedReceive>(machine_, stream, number,
                                              inner_->receive(peer, channel, message));
  }

  Machine machine_;
  const bool is_track_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace

std::chrono::nanoseconds thread_cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::vector<std::unique_ptr<SimulatedTransport>> simulate(
    std::vector<std::unique_ptr<Transport>> ranks, ClusterOptions options) {
  options.links.check_ranks(static_cast<int>(ranks.size()));
  const auto machine_cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int cores =
      options.cores > 0 ? options.cores : std::max(1, machine_cores / options.threads);
  auto cluster = std::make_shared<Cluster>(ranks.size(), options, cores);
  std::vector<std::unique_ptr<SimulatedTransport>> simulated;
  for (auto& inner : ranks) {
    const int rank = inner->rank();
    cluster->ranks[static_cast<std::size_t>(rank)].link = options.links.of(rank);
    simulated.push_back(std::make_unique<Simulated>(cluster, std::move(inner), 0));
  }
  return simulated;
}

}  // namespace thinreduce

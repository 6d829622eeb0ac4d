#include "thinreduce/transport/virtual_cluster.h"

#include <algorithm>
#include <utility>

namespace thinreduce::virtual_cluster {
namespace {

Time to_time(Seconds seconds) {
  return std::chrono::duration_cast<Time>(seconds);
}

Time duration(const Link& link, std::size_t bytes) {
  if (link.bytes_per_second <= 0) return Time::zero();
  return to_time(Seconds(static_cast<double>(bytes) / link.bytes_per_second));
}

// When the first byte of a message passes a place, and the last.
struct Span {
  Time first{0};
  Time last{0};
};

// Cut-through: the first byte leaves a link before the last has reached it. A link that is faster
// than the one before it waits for the last byte.
Span pass(Span arriving, BusyTimes& link, Time length) {
  const Time done = link.take(std::max(arriving.first, arriving.last - length), length);
  const Time last = std::max(arriving.last, done);
  return {last - length, last};
}

}  // namespace

Cluster::Cluster(std::size_t world, const ClusterOptions& settings, int cores)
    : options(settings), ranks(world), turns(cores) {
  for (const RegionPath& path : settings.links.paths) {
    crossings.push_back({path.one, path.other, path.link, {}});
    crossings.push_back({path.other, path.one, path.link, {}});
  }
}

Crossing* Cluster::crossing(int from, int to) {
  const auto found = std::ranges::find_if(
      crossings, [&](const Crossing& one) { return one.from.holds(from) && one.to.holds(to); });
  return found == crossings.end() ? nullptr : &*found;
}

Stream& Cluster::stream(int from, int to, Channel channel) {
  const auto world = static_cast<std::uint64_t>(ranks.size());
  return streams[(static_cast<std::uint64_t>(channel) * world + static_cast<std::uint64_t>(from)) *
                     world +
                 static_cast<std::uint64_t>(to)];
}

void Cluster::wake(Rank& rank, const Stream& stream, std::uint64_t count) {
  for (auto& [track, course] : rank.courses) {
    if (course.awaited != &stream || course.awaited_number >= count) continue;
    course.awaited = nullptr;
    turns.queue(course.clock, course.waiter);
  }
}

void Cluster::end_alignment() {
  for (Rank& rank : ranks) {
    Course& course = rank.courses[0];
    if (std::exchange(rank.aligning, false)) turns.queue(course.clock, course.waiter);
  }
}

void Cluster::end() {
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

Machine::Machine(std::shared_ptr<Cluster> cluster, int rank, int track)
    : cluster_(std::move(cluster)),
      rank_(rank),
      track_(track),
      own_(cluster_->ranks[static_cast<std::size_t>(rank)]),
      course_(open_course()) {}

Time& Machine::advance_to(Time used) const {
  const auto [known, is_new] = course_.threads.try_emplace(std::this_thread::get_id(), used);
  // A new thread may have the id of one that has ended; its CPU time starts again at 0.
  const Time work = used >= known->second ? used - known->second : used;
  if (!is_new) course_.clock = own_.computing.take(course_.clock, work);
  known->second = used;
  return known->second;
}

void Machine::count_work(Time own, Time elapsed) const {
  {
    const std::lock_guard lock(cluster_->mutex);
    const auto known = course_.threads.find(std::this_thread::get_id());
    if (known != course_.threads.end()) known->second += own - elapsed;
  }
  const Overhead counts_the_rest(*this);
}

void Machine::catch_up() const {
  course_.clock = std::max(course_.clock, course_.delivered);
  course_.chain = std::max(course_.chain, course_.delivered_chain);
}

void Machine::wake(int peer, const Stream& stream, std::uint64_t count) const {
  cluster_->wake(cluster_->ranks[static_cast<std::size_t>(peer)], stream, count);
}

Stamp Machine::post(int peer, std::size_t bytes) const {
  Rank& to = cluster_->ranks[static_cast<std::size_t>(peer)];
  Span span = pass({course_.clock, course_.clock}, own_.sending, duration(own_.link, bytes));
  Seconds latency = std::max(own_.link.latency, to.link.latency);
  if (Crossing* crossing = cluster_->crossing(rank_, peer)) {
    latency = std::max(latency, crossing->link.latency);
    span = pass(span, crossing->busy, duration(crossing->link, bytes));
  }
  span.first += to_time(latency);
  span.last += to_time(latency);
  return {pass(span, to.receiving, duration(to.link, bytes)).last, course_.chain + 1};
}

void Machine::align() const {
  Overhead overhead(*this, Overhead::Results::awaited);
  if (cluster_->over) return;
  auto& ranks = cluster_->ranks;
  own_.aligning = true;
  if (!std::ranges::all_of(ranks, &Rank::aligning)) {
    give_core();
    overhead.unlock();
    return wait_for_core();
  }
  own_.aligning = false;  // keeps its core
  Time latest{0};
  for (Rank& rank : ranks) latest = std::max(latest, rank.courses[0].clock);
  for (Rank& rank : ranks) rank.courses[0].clock = latest;
  cluster_->end_alignment();
}

void Machine::take_core() const {
  {
    const std::lock_guard lock(cluster_->mutex);
    cluster_->turns.queue(course_.clock, course_.waiter);
  }
  wait_for_core();
}

void Machine::give_core() const {
  if (std::exchange(course_.has_core, false)) cluster_->turns.give();
}

Course& Machine::open_course() const {
  const std::lock_guard lock(cluster_->mutex);
  return own_.courses[track_];
}

void Machine::wait_for_core() const {
  cluster_->turns.wait(course_.waiter);
  course_.has_core = true;
  // Going to sleep and waking up is no work of the rank.
  const std::lock_guard lock(cluster_->mutex);
  course_.threads[std::this_thread::get_id()] = cluster_->options.cpu_time();
}

Overhead::Overhead(const Machine& machine, Results results)
    : machine_(machine),
      used_(machine.cluster().options.cpu_time()),
      lock_(machine.cluster().mutex),
      counted_(begin(machine, results, used_)) {}

Time& Overhead::begin(const Machine& machine, Results results, Time used) {
  if (results == Results::awaited) machine.catch_up();
  return machine.advance_to(used);
}

Overhead::~Overhead() {
  if (lock_.owns_lock()) lock_.unlock();  // may wake a thread that waits for the lock
  counted_ = machine_.cluster().options.cpu_time();
}

}  // namespace thinreduce::virtual_cluster

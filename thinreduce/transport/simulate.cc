#include "thinreduce/transport/simulate.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

#include "thinreduce/ensure.h"
#include "thinreduce/transport/virtual_cluster.h"

namespace thinreduce {
namespace {

using virtual_cluster::Cluster;
using virtual_cluster::Course;
using virtual_cluster::Machine;
using virtual_cluster::Overhead;
using virtual_cluster::Stream;
using virtual_cluster::Time;

Clock::time_point to_point(Time time) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(time));
}

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
    machine_.wait(
        stream_, stream_.posted, number_, [&] { inner_->wait(no_deadline()); }, [] {});
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
    machine_.wait(
        stream_, stream_.sent, number_, [&] { inner_->wait(no_deadline()); }, [&] { arrive(); });
  }

 private:
  void arrive() {
    const auto found = stream_.stamps.find(number_);
    ensure(found != stream_.stamps.end(), "a message that was received has a stamp", number_);
    Course& course = machine_.course();
    course.clock = std::max(course.clock, found->second.arrives);
    course.chain = std::max(course.chain, found->second.chain);
    stream_.stamps.erase(found);
  }

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
    const Overhead overhead(machine_, Overhead::Results::awaited);
    return to_point(machine_.course().clock);
  }
  [[nodiscard]] std::unique_ptr<Transport> open_track(int number) override {
    auto track =
        std::make_unique<Simulated>(machine_.cluster_pointer(), inner_->open_track(number), number);
    track->count_in(*this);
    return track;
  }
  // A thread that hands its work over, or that waits for the next, must not keep a core.
  Moment hand_over() override {
    Overhead overhead(machine_);
    const Moment moment{.time = to_point(machine_.course().clock),
                        .chain = machine_.course().chain};
    overhead.unlock();
    machine_.give_core();
    return moment;
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
  void count_work(Time own, Time elapsed) override { machine_.count_work(own, elapsed); }
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
    Stream* stream = nullptr;
    std::uint64_t number = 0;
    {
      const Overhead overhead(machine_);
      stream = &machine_.outgoing(peer, channel);
      number = stream->sent++;
      // Before the message, so that the receiver finds it.
      stream->stamps[number] = machine_.post(peer, message.size());
      machine_.wake(peer, *stream, stream->sent);
    }
    return std::make_unique<SimulatedSend>(machine_, *stream, number,
                                           inner_->send(peer, channel, message));
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    Stream* stream = nullptr;
    std::uint64_t number = 0;
    {
      const Overhead overhead(machine_);
      stream = &machine_.incoming(peer, channel);
      number = stream->posted++;
      machine_.wake(peer, *stream, stream->posted);
    }
    return std::make_unique<SimulatedReceive>(machine_, *stream, number,
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

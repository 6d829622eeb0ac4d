// The clocks, cores and links of a virtual cluster (simulate.h), and the messages between its
// ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "thinreduce/transport/busy_times.h"
#include "thinreduce/transport/cluster_links.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/transport/turns.h"

namespace thinreduce::virtual_cluster {

using Time = std::chrono::nanoseconds;

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
  Cluster(std::size_t world, const ClusterOptions& settings, int cores);

  // Returns the path that a message takes between regions; null within a region.
  Crossing* crossing(int from, int to);
  Stream& stream(int from, int to, Channel channel);
  // Queues the course that waits for a message of this stream for a core if `count`, the number of
  // those that are ready, includes it.
  void wake(Rank& rank, const Stream& stream, std::uint64_t count);
  // Lets all ranks that wait in align() go on.
  void end_alignment();
  // Makes every wait that of the inner transport, which knows the ranks that failed or left.
  void end();

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
  Machine(std::shared_ptr<Cluster> cluster, int rank, int track);

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

  // Counts `elapsed` instead of `own`, a part of this thread's CPU time since the last look at the
  // clock.
  void count_work(Time own, Time elapsed) const;
  // Waits for the delivered results, as far as clocks are concerned. The caller holds the lock.
  void catch_up() const;
  // Queues the peer for a core if it waits for this. The caller holds the lock.
  void wake(int peer, const Stream& stream, std::uint64_t count) const;
  // Sends `bytes` at the time of the clock; returns the stamp of the message. The caller holds the
  // lock.
  [[nodiscard]] Stamp post(int peer, std::size_t bytes) const;

  // Waits without a core until `count`, a counter of the stream, is above `number`, then calls
  // `inner`, which waits for the message itself. Calls `arrived`, with the lock, as soon as the
  // message is sure to come.
  template <typename Inner, typename Arrived>
  void wait(const Stream& stream, const std::uint64_t& count, std::uint64_t number, Inner&& inner,
            Arrived&& arrived) const;

  void align() const;
  void take_core() const;
  void give_core() const;

 private:
  friend class Overhead;

  // Moves the clock on by the CPU time of this thread since its last call, for which the rank's
  // core must be free. The caller holds the lock. Returns the place of the thread's CPU time, which
  // only this thread uses.
  Time& advance_to(Time used) const;
  [[nodiscard]] Course& open_course() const;
  void wait_for_core() const;

  std::shared_ptr<Cluster> cluster_;
  int rank_;
  int track_;
  Rank& own_;
  Course& course_;
};

// A period in which a rank's thread does the work of the simulation, with the cluster's lock: it
// keeps the books of messages, wakes other ranks, and reads the CPU time, which is a system call. A
// machine of its own would do none of it, so the rank's clock skips the period.
class Overhead {
 public:
  enum class Results { ignored, awaited };

  // Where results of tracks are awaited, the clock catches up with them first.
  explicit Overhead(const Machine& machine, Results results = Results::ignored);
  Overhead(const Overhead&) = delete;
  Overhead& operator=(const Overhead&) = delete;
  ~Overhead();

  // Let other threads have the lock in between.
  void unlock() { lock_.unlock(); }
  void lock() { lock_.lock(); }

 private:
  [[nodiscard]] static Time& begin(const Machine& machine, Results results, Time used);

  const Machine& machine_;
  Time used_;  // must be read before the lock is taken, which may take long
  std::unique_lock<std::mutex> lock_;
  Time& counted_;  // CPU time of this thread that the clock has counted or skipped
};

template <typename Inner, typename Arrived>
void Machine::wait(const Stream& stream, const std::uint64_t& count, std::uint64_t number,
                   Inner&& inner, Arrived&& arrived) const {
  bool soon = false;
  {
    Overhead overhead(*this);
    if (count <= number && !cluster_->over) {
      course_.awaited = &stream;
      course_.awaited_number = number;
      give_core();
      overhead.unlock();
      wait_for_core();
      overhead.lock();
    }
    soon = count > number;
    if (soon) arrived();
  }
  if (soon) return inner();
  give_core();
  try {
    inner();
  } catch (...) {
    take_core();
    throw;
  }
  take_core();
  const Overhead overhead(*this);
  arrived();
}

}  // namespace thinreduce::virtual_cluster

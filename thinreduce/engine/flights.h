// The submitted buckets of a session. Several of them are in flight at once, each on a track and a
// thread of its own, so that their latencies overlap. Their futures become ready in the order in
// which they were submitted.
//
// The n-th bucket of a session takes track 1 + n mod kTracks on every rank, so it meets the n-th
// bucket of the others, and the agreement finds out whether that is the same one. A bucket waits
// for
// - the bucket kTracks before it, which has the same track,
// - an earlier one with the same id, whose state it continues,
// - earlier ones that fill the limit of bytes in flight.
// The oldest bucket never waits, and every bucket waits only for older ones. So ranks that start
// buckets at different times can't block one another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/engine/reducer.h"
#include "thinreduce/error.h"
#include "thinreduce/report.h"

namespace thinreduce {

class Flights {
 public:
  // The number of buckets in flight that a step of many small buckets needs to hide its latencies.
  static constexpr std::uint64_t kTracks = 8;
  // Two buckets overlap whatever their size. More would not make large ones faster, because they
  // share a link, but every one takes memory.
  static constexpr std::size_t kMaxBytes = std::size_t{32} * 1024 * 1024;

  // With a planner, a step opens with the first bucket, with the first one after begin_step(), and
  // with each bucket that was already submitted since the last one opened. That bucket starts when
  // all earlier ones have finished, and later ones start when the step is open.
  Flights(Transport& transport, Reducer& reducer, bool has_planner);
  // Waits for the submitted buckets, unless this rank has refused all that are left.
  ~Flights();
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  // Throws the error that has ended the session.
  [[nodiscard]] std::future<Report> submit(Job job);
  // Takes note that the next bucket is the first of a step.
  void begin_step();
  // Waits until all futures are ready. The caller may then use the transport and the reducer.
  void drain();
  // Throws the error that has ended the session, if one has.
  void require_alive();
  // Ends the session; returns the error that did so first.
  Error fail(const Error& error);
  // Returns the sum of all reports since the last call. Throws the error that has ended the
  // session.
  [[nodiscard]] Report take_reports();
  // Takes note that a bucket will not come again unless it is submitted anew.
  void forget(std::uint32_t id);
  // Ends the session: buckets in flight fail on all ranks with this reason.
  void abandon(const std::string& reason);

 private:
  struct Flight {
    std::uint64_t number = 0;
    Job job;
    Moment ready;             // when it may start, on a virtual clock
    bool opens_step = false;  // only with a planner
    bool opened = false;      // that is done
    double planning = 0;      // seconds that it took
    bool started = false;
    bool finished = false;
    Moment ended;
    Report report;
    std::exception_ptr error;
  };

  // Sets whether the bucket opens a step, and when it is ready in its step.
  void count_in_step(Flight& flight);
  void leave_if_all_are_refused();
  // Throws if there is no thread at all and none can be started.
  void add_threads_if_needed();
  void run();
  // Returns the oldest bucket that can start; null if there is none.
  [[nodiscard]] Flight* next();
  [[nodiscard]] bool can_start(const Flight& flight) const;
  // Returns whether earlier buckets with the same id or too many bytes are in flight.
  [[nodiscard]] bool is_held_back(const Flight& flight) const;
  void work(Flight& flight);
  [[nodiscard]] Report reduce(Flight& flight, Transport& track);
  // Returns the error that is being handled. A text for which there is no memory is left out.
  [[nodiscard]] Error error_of(const Job& job) const noexcept;
  static void add_planning(const Flight& flight, Report& report) noexcept;
  void open_step(Flight& flight, Transport& track);
  // Sets the clocks of buckets that this one holds back.
  void delay_later(const Flight& flight, const Moment& moment);
  void finish(Flight& flight);
  // Makes the futures ready of all finished buckets that no unfinished one precedes.
  void deliver();

  Transport& transport_;
  Reducer& reducer_;
  std::vector<std::unique_ptr<Transport>> tracks_;
  const bool has_planner_;
  const Error out_of_memory_{ErrorCode::unavailable, "out of memory"};  // a copy needs none

  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::deque<Flight> flights_;  // by number; references stay valid while others come and go
  std::uint64_t submitted_ = 0;
  std::set<std::uint32_t> in_step_;  // ids submitted since a step opened; only with a planner
  Clock::time_point step_began_;
  std::size_t working_ = 0;  // threads
  bool stopping_ = false;
  std::optional<Error> failure_;
  Report since_;
  std::vector<std::thread> threads_;  // started when there is work for one more
};

}  // namespace thinreduce

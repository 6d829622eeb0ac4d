#include "thinreduce/engine/flights.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "thinreduce/engine/advice.h"

namespace thinreduce {

Flights::Flights(Transport& transport, Reducer& reducer, bool has_planner)
    : transport_(transport), reducer_(reducer), has_planner_(has_planner) {
  static_assert(kTracks <= kMaxTracks);
  threads_.reserve(kTracks);
  for (std::uint64_t number = 1; number <= kTracks; ++number) {
    tracks_.push_back(transport.open_track(static_cast<int>(number)));
  }
}

Flights::~Flights() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  leave_if_all_are_refused();
  for (auto& thread : threads_) thread.join();
}

// Nobody here waits for a refused bucket, and the others may never submit it.
void Flights::leave_if_all_are_refused() {
  std::unique_lock lock(mutex_);
  if (flights_.empty()) return;
  const auto is_refused = [](const Flight& flight) { return flight.job.refusal.has_value(); };
  if (!std::ranges::all_of(flights_, is_refused)) return;
  const Job& job = flights_.front().job;
  const std::string reason = describe_refusal(*job.refusal, job.bucket->elements());
  lock.unlock();
  abandon(reason);
}

std::future<Report> Flights::submit(Job job) {
  auto future = job.done.get_future();
  std::optional<Error> refused;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    Flight& flight = flights_.emplace_back();
    flight.number = submitted_++;
    flight.ready = job.submitted;
    flight.job = std::move(job);
    if (has_planner_) count_in_step(flight);
    try {
      add_threads_if_needed();
    } catch (const std::exception& error) {
      flights_.pop_back();
      refused = Error(ErrorCode::unavailable,
                      fmt::format("no thread that reduces buckets can be started: {}; the limit on "
                                  "threads or memory is reached",
                                  error.what()));
    }
  }
  if (refused) throw fail(*refused);  // the other ranks wait for this bucket
  changed_.notify_all();
  return future;
}

void Flights::begin_step() {
  const std::lock_guard lock(mutex_);
  in_step_.clear();
}

void Flights::count_in_step(Flight& flight) {
  const bool is_new = in_step_.insert(flight.job.bucket->id()).second;
  flight.opens_step = !is_new || in_step_.size() == 1;
  if (flight.opens_step) {
    in_step_ = {flight.job.bucket->id()};
    step_began_ = flight.job.submitted.time;
  }
  const Seconds ready = flight.job.submitted.time - step_began_;
  flight.job.ready = std::max(0.0, ready.count());
}

void Flights::add_threads_if_needed() {
  if (stopping_) return;  // the destructor goes through the threads without the mutex
  const auto waiting = static_cast<std::size_t>(std::ranges::count_if(
      flights_, [&](const Flight& flight) { return !flight.started && can_start(flight); }));
  while (waiting > threads_.size() - working_ && threads_.size() < kTracks) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::exception&) {
      if (threads_.empty()) throw;
      return;  // fewer threads are slower, but no bucket waits for a later one
    }
  }
}

void Flights::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return flights_.empty(); });
}

void Flights::require_alive() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

Report Flights::take_reports() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  return std::exchange(since_, Report{});
}

void Flights::forget(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  in_step_.erase(id);
}

void Flights::abandon(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = Error(ErrorCode::lost_peer,
                       fmt::format("rank {} gave up: {}", transport_.rank(), reason));
    }
  }
  transport_.abandon(reason);
}

bool Flights::is_held_back(const Flight& flight) const {
  std::size_t before = 0;
  std::size_t bytes = flight.job.values.size_bytes();
  for (const Flight& earlier : flights_) {
    if (earlier.number == flight.number) break;
    if (earlier.finished) continue;
    if (earlier.job.bucket->id() == flight.job.bucket->id()) return true;
    if (flight.opens_step || (earlier.opens_step && !earlier.opened)) return true;
    bytes += earlier.job.values.size_bytes();
    ++before;
    if (before >= 2 && bytes > kMaxBytes) return true;
  }
  return false;
}

bool Flights::can_start(const Flight& flight) const {
  const std::uint64_t first = flights_.front().number;
  const bool has_track =
      flight.number < first + kTracks || flights_[flight.number - kTracks - first].finished;
  return has_track && !is_held_back(flight);
}

Flights::Flight* Flights::next() {
  for (Flight& flight : flights_) {
    if (!flight.started && can_start(flight)) return &flight;
  }
  return nullptr;
}

void Flights::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Flight* flight = nullptr;
    changed_.wait(lock, [&] {
      flight = next();
      return flight != nullptr || (stopping_ && flights_.empty());
    });
    if (flight == nullptr) return;
    flight->started = true;
    ++working_;
    lock.unlock();
    work(*flight);
    lock.lock();
    --working_;
    finish(*flight);
    changed_.notify_all();
  }
}

void Flights::work(Flight& flight) {
  Transport& track = *tracks_[flight.number % kTracks];
  track.go_on_from(flight.ready);
  try {
    flight.report = reduce(flight, track);
  } catch (...) {
    flight.error = std::current_exception();
  }
  flight.ended = track.hand_over();
}

Report Flights::reduce(Flight& flight, Transport& track) {
  Job& job = flight.job;
  {
    std::unique_lock lock(mutex_);
    if (failure_) {
      const Error failure = *failure_;
      lock.unlock();
      reducer_.keep(job);
      throw failure;
    }
  }
  const Traffic before = track.total_traffic();
  try {
    if (flight.opens_step) open_step(flight, track);
    Report report = reducer_.reduce(job, track);
    const Traffic traffic = track.total_traffic();
    report.bytes_sent = traffic.bytes_sent - before.bytes_sent;
    report.bytes_received = traffic.bytes_received - before.bytes_received;
    if (flight.opens_step) add_planning(flight, report);
    return report;
  } catch (const Disagreement& disagreement) {
    // All ranks throw the same error and nothing was changed, so the session goes on.
    throw Error(disagreement.error);
  } catch (...) {
    throw fail(error_of(job));
  }
}

Error Flights::error_of(const Job& job) const noexcept {
  try {
    return current_error(
        fmt::format("bucket {}, {} elements", job.bucket->id(), job.bucket->elements()));
  } catch (const std::bad_alloc&) {
    return out_of_memory_;
  }
}

// The bucket is reduced: it must not fail any more.
void Flights::add_planning(const Flight& flight, Report& report) noexcept {
  try {
    report.statistics["planning_seconds"] = flight.planning;
  } catch (const std::bad_alloc&) {  // the report lacks a figure
  }
}

void Flights::open_step(Flight& flight, Transport& track) {
  try {
    flight.planning = reducer_.open_step(track);
  } catch (const Disagreement&) {
    throw;  // the caller has the gradient and may submit it again
  } catch (...) {
    reducer_.keep(flight.job);
    throw;
  }
  const Moment opened = track.hand_over();
  {
    const std::lock_guard lock(mutex_);
    delay_later(flight, opened);
    flight.opened = true;
    add_threads_if_needed();
  }
  changed_.notify_all();
}

void Flights::delay_later(const Flight& flight, const Moment& moment) {
  if (!transport_.counted_time()) return;  // only a virtual clock must know
  for (Flight& later : flights_) {
    if (later.number <= flight.number || !is_held_back(later)) continue;
    later.ready.time = std::max(later.ready.time, moment.time);
    later.ready.chain = std::max(later.ready.chain, moment.chain);
  }
}

void Flights::finish(Flight& flight) {
  delay_later(flight, flight.ended);
  flight.finished = true;
  deliver();
  add_threads_if_needed();  // this bucket may have held several back
}

void Flights::deliver() {
  while (!flights_.empty() && flights_.front().finished) {
    Flight& flight = flights_.front();
    transport_.go_on_from(flight.ended);
    if (flight.error) {
      flight.job.done.set_exception(flight.error);
    } else {
      try {
        since_ += flight.report;
      } catch (const std::bad_alloc&) {  // the sum lacks the figures of a bucket
      }
      flight.job.done.set_value(std::move(flight.report));
    }
    flights_.pop_front();
  }
}

Error Flights::fail(const Error& error) {
  Error first = error;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    first = *failure_;
  }
  try {
    transport_.abandon(first.what());
  } catch (const std::bad_alloc&) {
    transport_.abandon("out of memory");  // so short that it needs none
  }
  return first;
}

}  // namespace thinreduce

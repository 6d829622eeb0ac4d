// A virtual cluster: ranks that are threads of this process behave as if each had a machine with
// a core per thread and a link of its own, however many cores this machine has.
//
// Every rank has a virtual clock, Transport::now(), and so has every track. It advances by the CPU
// time of the threads that use it, and a receive moves it on to the message's arrival. The clocks
// of a rank's tracks share its one core: two pieces of work at the same time take as long as one
// after the other. hand_over() and go_on_from() carry the time from one clock to another; the clock
// of the transport itself catches up with the results of its tracks when it is looked at.
//
// A message leaves when the sender's link is free, occupies that link for bytes/bandwidth, travels
// for the latency and occupies the receiver's link for bytes/bandwidth again (cut-through, full
// duplex: throttle.h has the same model in real time). Between two ranks with different links the
// larger latency counts. A message between two regions occupies their path as well.
//
// Work that the threads of a rank share (collective/workers.h) takes the time that its blocks would
// take if each thread had a core of its own.
//
// As many ranks compute at once as this machine has cores; the others wait, the one with the
// earliest clock first, so that ranks do not slow one another down and their CPU times are those of
// a core alone. Not simulated are the CPU time of a real network stack (a message costs one
// copy), and memory bandwidth that the cores of this machine share.
//
// A receiver's link serves messages in the order in which they were sent in real time. A message
// that was sent later, but arrives earlier in virtual time, uses what is left of the link before
// the others and does not delay them. So shared links are never used twice, but the order among
// senders whose messages overlap may differ between runs.
//
// Timeouts do not apply, because the real time of a wait says nothing about the virtual one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "thinreduce/transport/cluster_links.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Returns the CPU time of the calling thread.
[[nodiscard]] std::chrono::nanoseconds thread_cpu_time();

struct ClusterOptions {
  ClusterLinks links;
  int cores = 0;    // ranks that compute at once; 0: as many as this machine has cores for
  int threads = 1;  // cores that a rank has
  // The time that the calling thread has computed; tests replace it to get exact times.
  std::function<std::chrono::nanoseconds()> cpu_time = thread_cpu_time;
};

class SimulatedTransport : public Transport {
 public:
  // Waits until all ranks have called it, and sets their clocks to the latest one: a barrier
  // without messages. Returns early if a rank has failed or left, which the next message reports.
  virtual void align() = 0;
  // Gives this rank another link from now on.
  virtual void set_link(const Link& link) = 0;
  // Starts to count the messages of the longest chain anew, on all tracks.
  virtual void begin_chain() = 0;
  // Returns the largest number of messages, each sent after the one before it was received, of
  // which the last reached this rank.
  [[nodiscard]] virtual std::uint64_t longest_chain() const = 0;
};

// Wraps the transports of all ranks of a world, which must be threads of this process
// (connect_threads). Throws Error{bad_input} when the links name a rank outside the world.
[[nodiscard]] std::vector<std::unique_ptr<SimulatedTransport>> simulate(
    std::vector<std::unique_ptr<Transport>> ranks, ClusterOptions options);

}  // namespace thinreduce

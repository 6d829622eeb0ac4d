// The context in which a method reduces one bucket: the transport, the identity of its frames, the
// limits for every wait, and the times and bytes spent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "thinreduce/collective/original.h"
#include "thinreduce/collective/statistics.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/report.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {

// The stages that a method times itself.
enum class Stage { encode, decode };

// Buffers that receives reuse.
using SpareBuffers = std::vector<std::vector<std::byte>>;

// The estimate before a measurement: a wired network in one building.
inline constexpr Link kLocalNetwork{.bytes_per_second = 125e6, .latency = Seconds{100e-6}};

class Exchange {
 public:
  Exchange(Transport& transport, const WaitLimits& limits, const FrameId& id)
      : transport_(transport),
        limits_(limits),
        id_(id),
        sent_(static_cast<std::size_t>(transport.size())),
        received_(sent_.size()) {}

  [[nodiscard]] Transport& transport() { return transport_; }
  [[nodiscard]] int rank() const { return transport_.rank(); }
  [[nodiscard]] int size() const { return transport_.size(); }
  [[nodiscard]] const FrameId& id() const { return id_; }

  // Runs `work` and adds its seconds to the time of `stage`.
  template <typename Work>
  void timed(Stage stage, Work&& work) {
    charge(stage == Stage::encode ? stages.encode : stages.decode, std::forward<Work>(work));
  }
  // Waits within the limits and adds the seconds to the wire.
  void wait(Operation& operation) {
    keep_original();
    finish_early_work();
    charge(stages.wire, [&] { operation.wait(Deadline::after(limits_)); });
  }

  // Sets work that waits for messages that are in flight already. It runs before the next wait, so
  // that the messages which are started until then travel at the same time.
  void finish_before_wait(std::function<void()> work) { early_work_ = std::move(work); }
  // Runs that work unless it has run.
  void finish_early_work() {
    if (early_work_) std::exchange(early_work_, nullptr)();
  }

  // Sets where the caller's gradient is kept, if the method has no residual that would hold it
  // after a failure. The first wait keeps all of it, while the first messages travel: until then no
  // method writes the mean.
  void set_original(Original* original) { original_ = original; }
  // Keeps the gradient unless that was done.
  void keep_original() {
    if (Original* const original = keep_in_parts()) {
      timed(Stage::encode, [&] { original->keep_all(); });
    }
  }
  // Keeps the gradient in a world of one rank, which never waits but may run out of memory.
  // Collectives call it before they pass on the values that become the mean.
  void keep_original_if_alone() {
    if (size() == 1) keep_original();
  }
  // For a method that keeps each range just before it encodes it, when it is in the cache: returns
  // where, or null if the gradient need not be kept. Must be called before the first wait.
  [[nodiscard]] Original* keep_in_parts() { return std::exchange(original_, nullptr); }

  // Number the messages with a checksum that go to `peer` and come from it in this exchange. The
  // number is part of the checksum: a message that is lost, repeated or out of order is refused.
  [[nodiscard]] std::uint64_t number_sent(int peer) {
    return sent_[static_cast<std::size_t>(peer)]++;
  }
  [[nodiscard]] std::uint64_t number_received(int peer) {
    return received_[static_cast<std::size_t>(peer)]++;
  }

  StageTimes stages;
  // Bytes of one copy of this rank's compressed bucket, added up by the collectives; methods leave
  // it alone. A gather and through_root() count this rank's frames, a ring its payload averaged
  // over the hops, a broadcast its message on every rank. On one rank each counts as if there were
  // peers.
  std::uint64_t payload_bytes = 0;
  // Where gather_pieces() and owner_reduce() take their buffers from and leave them; null: they
  // allocate them. All buckets of a session share them, so that their number depends on the number
  // of ranks alone.
  SpareBuffers* spare = nullptr;
  // The threads that share the work of this rank.
  Workers workers;
  // The estimated link between ranks, from which the collective is chosen. It must be the same on
  // all ranks.
  Link link = kLocalNetwork;
  // In a trial: size of the whole bucket as a multiple of this sample. The collective is chosen as
  // for the whole bucket.
  double stands_for = 1;
  // Figures of this step that the method reports, by name.
  Statistics statistics;

 private:
  template <typename Work>
  void charge(double& stage, Work&& work) {
    const auto start = transport_.now();
    std::forward<Work>(work)();
    stage += Seconds(transport_.now() - start).count();
  }

  Transport& transport_;
  WaitLimits limits_;
  FrameId id_;
  std::vector<std::uint64_t> sent_;      // messages numbered so far, by peer
  std::vector<std::uint64_t> received_;  // the same
  std::function<void()> early_work_;
  Original* original_ = nullptr;  // until it is kept
};

}  // namespace thinreduce

// A session: one rank's side of a training run. A worker thread takes buckets in the order in which
// they were submitted and reduces each with the method of its spec, while the caller goes on.
//
//   auto ranks = connect_threads(2);                       // or connect_gloo, connect_mpi
//   Session session(std::move(ranks[0]), {.spec = "topk:density=0.01"});
//   auto done = session.submit(layout, gradient);          // returns at once
//   done.get();                                            // gradient now holds the mean
//
// All ranks must submit the same buckets in the same order. Before a bucket is reduced, the ranks
// compare what they are about to do; when they differ, or a gradient is not finite, every rank gets
// the same Error, the gradient and all residuals are as before, and the session goes on. One
// exception: in a bucket of more than 1 MiB that travels uncompressed, NaN and Inf are only found
// while it is summed; the session goes on as well, but the bucket's values are void.
//
// All else that goes wrong while a bucket is worked on ends the session, and every later call
// repeats the Error: kinds lost_peer, timeout and bad_frame, a mismatch found in the middle of an
// exchange, and whatever a method throws. docs/errors.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

struct SessionOptions {
  std::string spec = "fp32";
  // Longest silence of a peer before the session gives up.
  Seconds timeout{60};
  // Tensors with fewer elements, and 1-D tensors, travel as fp32. Buckets without shapes count as
  // one tensor of many dimensions.
  std::size_t min_elements = 1024;
  // The first steps of every bucket travel as fp32.
  std::uint64_t warmup_steps = 0;
  // Every so many steps the ranks compare a hash of the bucket's last mean; 0: never.
  std::uint64_t check_replicas_every = 100;
  // For methods that draw random numbers; must be the same on all ranks.
  std::uint64_t seed = 0;
  // Some methods (Spec::momentum_inside) hand back an update that has momentum inside already. An
  // optimizer with momentum of its own would apply it twice, and the training would diverge or just
  // be worse, without a word. So a session refuses such a spec unless the caller says here that it
  // takes care: the optimizer's momentum is 0. Nothing to do for specs with momentum=0.
  bool momentum_inside_ok = false;
};

// What reducing one bucket took, or the sum over the buckets of a step.
struct Report {
  std::uint64_t step = 0;
  std::uint64_t buckets = 0;
  std::uint64_t elements = 0;
  std::uint64_t payload_bytes = 0;  // one copy of this rank's compressed gradient
  std::uint64_t bytes_sent = 0;     // by this rank, to all peers
  std::uint64_t bytes_received = 0;
  StageTimes stages;
  double queued = 0;  // seconds between submit and the worker's start
  double total = 0;   // seconds between submit and done
  std::map<std::string, double> statistics;

  Report& operator+=(const Report& other);
};

class Session {
 public:
  // Waits for the other ranks' sessions. The transport may serve another session afterwards, but
  // not two at a time. Throws Error{bad_spec} for a spec that does not exist, or that has momentum
  // inside without momentum_inside_ok.
  Session(std::shared_ptr<Transport> transport, const SessionOptions& options);
  // Finishes what was submitted.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;

  // Starts to replace `values` by the mean over all ranks. The values, and the second moment if
  // given, must stay in place until the future is ready. A bucket id always means the same layout.
  // Throws Error{bad_spec} when the layout's own spec is not one.
  [[nodiscard]] std::future<Report> submit(const BucketLayout& layout, std::span<float> values,
                                           std::span<const float> second_moment = {});

  // submit() and wait, for a bucket without shapes.
  Report reduce(std::uint32_t id, std::span<float> values);

  // Waits for all that was submitted; the sum of the reports since the last call.
  Report finish_step();

  // Residuals, step counters and all else that a resumed run needs, of this rank. The file appears
  // whole or not at all. Waits for what was submitted.
  void save(const std::filesystem::path& file);
  // Throws Error{bad_state} for a file that is cut, altered, of another version, world size, rank
  // or spec; the session is then as before.
  void load(const std::filesystem::path& file);
  // The same without a file.
  [[nodiscard]] std::vector<std::byte> save_bytes();
  void load_bytes(std::span<const std::byte> bytes);

  // Ends the session from any thread: what is on its way fails on all ranks, with this reason. Over
  // MPI only between steps, because one thread at a time may use MPI.
  void abandon(const std::string& reason);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace thinreduce

// A session: one rank's side of a training run. Its threads reduce each submitted bucket with the
// method of its spec, several at a time, while the caller goes on. Their futures become ready in
// the order of submission.
//
//   auto ranks = connect_threads(2);                       // or connect_gloo, connect_mpi
//   Session session(std::move(ranks[0]), {.spec = "topk:density=0.01"});
//   const BucketHandle bucket = session.add_bucket(layout);  // once
//   auto done = session.submit(bucket, gradient);            // in every step; returns at once
//   done.get();                                              // gradient now holds the mean
//
// All ranks must submit the same buckets in the same order. Before a bucket is reduced, the ranks
// compare their descriptions of it. When these differ, or a gradient is not finite, every rank gets
// the same Error, the gradient and all residuals are as before, and the session goes on.
//
// Every other failure during a reduce ends the session, and every later call repeats its Error:
// codes lost_peer, timeout and bad_frame, a mismatch found in the middle of an exchange, and
// whatever a method throws. If the spec keeps a residual, or is `auto`, save() then stores the
// gradients of all submitted buckets that were not reduced. Otherwise the memory of these buckets
// holds their gradients as before. docs/errors.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinreduce/export.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/plan/plan.h"
#include "thinreduce/report.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// The reaction to a rank whose gradient has a norm far above the median of all ranks. The norms
// of a bucket in one step are compared; they travel in the agreement.
enum class Guard {
  off,
  report,  // Report::outliers names the rank
  clip,    // the same, and the rank's gradient is scaled down to the largest norm that is allowed
  refuse,  // Error{bad_input} on all ranks names the rank; nothing is reduced
};
// Returns the guard with this name. Throws Error{bad_input}.
[[nodiscard]] THINREDUCE_EXPORT Guard guard_of(std::string_view name);
[[nodiscard]] THINREDUCE_EXPORT std::string_view to_string(Guard guard);

struct SessionOptions {
  std::string spec = "fp32";  // the method and its options; docs/methods lists them
  // Longest silence of a peer before the session gives up. Over gloo a peer that is alive is never
  // silent, however long it computes. Over threads and MPI only `patience` counts.
  Seconds timeout{60};
  // Longest wait for a peer that is alive but does not take part; 0 or infinite: forever.
  Seconds patience = WaitLimits::kDefaultPatience;
  // Tensors with fewer elements, and 1-D tensors, travel uncompressed. A bucket without shapes
  // counts as one tensor of two dimensions.
  std::size_t min_elements = 1024;
  // Number of steps at the start of every bucket that travel uncompressed.
  std::uint64_t warmup_steps = 0;
  // Interval in steps at which the ranks compare a hash of the bucket's last mean; 0: never.
  std::uint64_t check_replicas_every = 100;
  // The guard against a rank that is wrong, and how many times the median a norm may be: more
  // than 1. NaN and Inf are always found before a bucket is reduced if there is a guard.
  Guard guard = Guard::off;
  double guard_factor = 10;
  // Threads that share the work on a large bucket, this session's own thread included: 1 to
  // kMaxThreads. The results have the same bits for any number, and ranks may differ.
  int threads = 1;
  static constexpr int kMaxThreads = 1024;
  // Seed of all random numbers.
  std::uint64_t seed = 0;
  // The network between the ranks. Used to choose how sums travel; results do not depend on it.
  // none: the ranks measure it with a few messages when the session starts.
  std::optional<Link> link{};
  // Confirms that the optimizer has no momentum of its own. Some specs (sketch:momentum=0.9) give
  // an update with momentum inside; an optimizer would apply momentum to it again unnoticed. So a
  // session refuses such a spec unless this is true. Other specs ignore it.
  bool momentum_inside_ok = false;
  // Settings of the caller, as words "name=value"; they are only compared with the other ranks'.
  std::string caller_settings{};

  [[nodiscard]] WaitLimits limits() const { return {timeout, patience}; }
};

// The outcome of Session::reconfigure(). Old ranks are numbers of this rank's old world.
struct Reconfiguration {
  std::uint64_t steps = 0;  // completed in the training so far: see commit_step()
  // Whether the step that this rank had begun was taken back, so that it must compute the gradients
  // again and submit them. Otherwise a step whose commit_step() failed is complete: its means are
  // right on all ranks, and the optimizer's step comes next.
  bool repeat = false;
  std::vector<int> lost{};    // old ranks whose states, with their residuals, are lost
  std::vector<int> left{};    // old ranks that left with commit_step(); their residuals were kept
  std::vector<int> joined{};  // new ranks that were not in the old world
  // The first new rank that was in the old world: new ones need its parameters. 0 if none was.
  int source = 0;
  double seconds = 0;  // of the call
  std::string text{};  // all fields in words
};

struct RegisteredBucket;

// A bucket that a session knows. Copies refer to the same bucket.
class THINREDUCE_EXPORT BucketHandle {
 public:
  // No move: a handle is never empty.
  BucketHandle(const BucketHandle&) = default;
  BucketHandle& operator=(const BucketHandle&) = default;
  ~BucketHandle() = default;

  [[nodiscard]] const BucketLayout& layout() const;
  // Returns the bucket's spec, its own or the session's, with every option written out.
  [[nodiscard]] std::string spec() const;

 private:
  friend class Session;
  BucketHandle(std::shared_ptr<const RegisteredBucket> bucket, const void* session)
      : bucket_(std::move(bucket)), session_(session) {}

  std::shared_ptr<const RegisteredBucket> bucket_;
  const void* session_;  // the session that made it
};

class THINREDUCE_EXPORT Session {
 public:
  // Waits for the sessions of the other ranks. All ranks must give the same options, timeout,
  // patience, threads and link excepted; the slowest link counts. A transport may serve several
  // sessions, but only one at a time. Throws Error{bad_spec} for a spec that does not exist, or
  // that has momentum inside without momentum_inside_ok; Error{bad_input} for a timeout or patience
  // that is negative or NaN, or for a number of threads out of range; Error{mismatch} when the
  // options of two ranks differ.
  Session(std::shared_ptr<Transport> transport, const SessionOptions& options);
  // Waits for the submitted buckets, unless submit() or decline() has refused all that are left:
  // the others then lose this rank, with the reason. In a forked child it does nothing: the session
  // belongs to the process that made it, and every other call in a child is an Error{unavailable}.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;

  // Registers a bucket: checks, hashes and splits its layout and parses its spec, which submit()
  // then need not do. Does not communicate. A layout may be registered again. From the first
  // reduce on, its id stands for that layout: submitting another one under the same id is an
  // Error{bad_input} on all ranks.
  // Throws Error{bad_input} for tensors that do not fill the bucket, Error{bad_spec} for a spec of
  // its own that does not exist.
  [[nodiscard]] BucketHandle add_bucket(BucketLayout layout) const;

  // Starts to replace `values` by the mean over all ranks. The memory of the values, and of the
  // second moment if given, must stay valid and untouched until the future is ready. Throws
  // Error{bad_input} when their sizes are not the bucket's or the handle is another session's; the
  // other ranks then get an error for this bucket that names this rank, and the session goes on.
  [[nodiscard]] std::future<Report> submit(const BucketHandle& bucket, std::span<float> values,
                                           std::span<const float> second_moment = {});

  // Takes the place of a submit() that this rank can't make while the others make it, because the
  // caller has found an error of its own: the others get an Error{bad_input} that names this rank,
  // and the session goes on. With the spec `auto` the session ends instead, with `reason`. Returns
  // at once. Throws the error that has ended the session.
  void decline(const std::string& reason);

  // Reduces a bucket without shapes and waits; registers it in the first call.
  Report reduce(std::uint32_t id, std::span<float> values,
                std::span<const float> second_moment = {});

  // Waits for the submitted buckets; returns the sum of all reports since the last call.
  Report finish_step();

  // Starts a step that undo_step() can take back. From the first call on, the state of each bucket
  // is copied before its first reduce of a step, which doubles the memory of residuals. With `auto`
  // a plan may change here, so all ranks must call it in the same steps. Waits for the submitted
  // buckets.
  void begin_step();
  // Restores residuals, step numbers and learned state as they were at begin_step(). For a step
  // that is skipped because one of its buckets was refused: others may have delivered already. Does
  // nothing before the first begin_step(). Must be called on all ranks. Waits for the submitted
  // buckets.
  void undo_step();

  // Ends a step that begin_step() began: waits for the submitted buckets, and until all ranks have
  // reduced theirs. Must be called on all ranks before the optimizer's step; costs one latency.
  // After an error, reconfigure() says whether the step is complete. With `leave`, this rank hands
  // what it owes to another and must then be destroyed. Returns the ranks that leave; the others
  // must call reconfigure() next.
  std::vector<int> commit_step(bool leave = false);

  // Goes on in a new world of ranks over another transport, after the loss of a rank or an
  // agreement between them, from the last step that all of them have completed. Must be called on
  // all ranks of the new world. Ranks that have reduced nothing yet, in a world of one rank
  // (connect_threads(1)) for example, join: they get the state that all ranks share and owe
  // nothing. Bucket handles stay valid. Waits for the submitted buckets. Throws like the
  // constructor, and Error{mismatch} when the ranks stopped at different steps, which begin_step()
  // and commit_step() in every step prevent. After an error everything that this rank owes is as
  // before, and reconfigure() may be called again. No other call may run at the same time.
  Reconfiguration reconfigure(std::shared_ptr<Transport> transport);

  // Replaces `message` by that of rank `root`, of any length: the parameters for a rank that has
  // joined, for example. Must be called on all ranks. Waits for the submitted buckets. Throws
  // Error{bad_input} for a root outside the world; any other error ends the session.
  void broadcast(int root, std::vector<std::byte>& message);

  // Drops a bucket and its residual, on all ranks at the same point of the run. Waits for the
  // submitted buckets. The id may then have another layout.
  void forget(std::uint32_t id);

  // Saves this rank's residuals, step numbers and everything else that a resumed run needs. Waits
  // for the submitted buckets. A crash leaves either the whole file or none. Throws
  // Error{unavailable} when the file can't be written.
  void save(const std::filesystem::path& file);
  // Throws Error{bad_state} for a file that is truncated, altered, or of another version, world
  // size, rank or spec; the session is then as before. Throws Error{unavailable} when the file
  // can't be read.
  void load(const std::filesystem::path& file);
  // The same without a file.
  [[nodiscard]] std::vector<std::byte> save_bytes();
  void load_bytes(std::span<const std::byte> bytes);

  // Returns which method each bucket has and why, if the spec is `auto`. May be called from any
  // thread.
  [[nodiscard]] Plan plan() const;

  // Ends the session: buckets in flight fail on all ranks with this reason. May be called from any
  // thread.
  void abandon(const std::string& reason);

 private:
  class THINREDUCE_HIDDEN Implementation;
  std::unique_ptr<Implementation> own_;
  std::map<std::uint32_t, BucketHandle> shapeless_;  // the buckets of reduce(), by id
};

// Turns the saved states of a world of N ranks into states for a world of M ranks, so that a run
// continues with more or fewer ranks and loses nothing that its methods still owe to the model.
//
// Residuals of old rank r go to new rank r mod M and are added where several meet, so their sum
// over all ranks stays the same; a new rank that gets none starts with zeros. State that all ranks
// share is copied. Data that only one rank keeps moves to its keeper in the new world.
//
// Takes what Session::save_bytes() returned on all old ranks, in any order; returns the argument of
// Session::load_bytes() for every new rank, in rank order. Throws Error{bad_state} unless the
// states are those of all ranks of one run, saved at the same step.
[[nodiscard]] THINREDUCE_EXPORT std::vector<std::vector<std::byte>> redistribute(
    std::span<const std::vector<std::byte>> states, int world);

}  // namespace thinreduce

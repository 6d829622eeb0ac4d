// Local steps: every rank trains by itself for `every` steps, then the ranks exchange the changes
// of their parameters, through any method, and an outer step moves the parameters that all share.
//
//   LocalSteps sync(session, {.every = 30}, tensors);
//   sync.set_anchor(0, parameters);                    // once; the same bits on all ranks
//   optimizer.step();
//   const auto due = sync.advance();                   // after every local step
//   for (auto f : due.start) sync.start(f, parameters);
//   for (auto f : due.apply) sync.apply(f, parameters);
//
// The anchor is the float32 copy of the parameters as they were after the last outer step: the same
// bits on all ranks. A round starts with the difference anchor - parameters, which a session
// replaces by its mean over the ranks; OuterStep then moves the anchor. A method's residual keeps
// the part that it did not send, and the parameters that apply() writes are
//
//   new anchor + (parameters now - parameters when the exchange was started),
//
// so local steps that were done while the exchange was under way are kept, and the next round sends
// them. Without such steps (overlap = 0) the parameters of all ranks are the new anchor.
//
// The tensors are divided into `fragments`, which are exchanged in turn, every / fragments steps
// apart, so that the link is used evenly. An exchange that is started after step t is applied after
// step t + overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/export.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/report.h"

namespace thinreduce {

struct THINREDUCE_EXPORT LocalStepsOptions {
  // Local steps per round, 1 to kMaxEvery.
  std::uint64_t every = 30;
  static constexpr std::uint64_t kMaxEvery = 1'000'000'000;
  // "nesterov,lr=0.7,momentum=0.9" or "sgd,lr=1" (momentum 0).
  std::string outer = "nesterov,lr=0.7,momentum=0.9";
  // Number of parts that are exchanged in turn; at most `every`, and at most one per tensor.
  std::size_t fragments = 1;
  // Local steps from the start of an exchange until it is applied; below `every`.
  std::uint64_t overlap = 0;
  // The session's bucket of fragment 0; those of the others follow.
  std::uint32_t first_id = 0;
  // The spec of these buckets; empty: the session's.
  std::string spec{};
  // The word with which errors name a tensor, as in "the parameter 'weight' of rank 1".
  std::string kind = "parameter";

  // Returns the settings that must be equal on all ranks, for SessionOptions::caller_settings.
  // Throws Error{bad_input} for a value out of range.
  [[nodiscard]] std::string settings() const;
  // Returns whether the outer step has momentum. A spec with momentum inside must then not be used.
  [[nodiscard]] bool momentum() const;
};

// The fragments to start, then those to apply.
struct LocalStepsDue {
  std::vector<std::size_t> start;
  std::vector<std::size_t> apply;
};

class THINREDUCE_EXPORT LocalSteps {
 public:
  // `session` must outlive this. Offsets of the tensors are ignored. Throws Error{bad_input}.
  LocalSteps(Session& session, const LocalStepsOptions& options,
             const std::vector<Tensor>& tensors);
  // Waits for the exchanges under way.
  ~LocalSteps();
  LocalSteps(const LocalSteps&) = delete;
  LocalSteps& operator=(const LocalSteps&) = delete;

  [[nodiscard]] std::size_t fragments() const;
  // Returns the tensors of a fragment, side by side; spans of its parameters have this layout.
  [[nodiscard]] const BucketLayout& layout(std::size_t fragment) const;
  // Returns which of the constructor's tensors these are.
  [[nodiscard]] const std::vector<std::size_t>& members(std::size_t fragment) const;
  [[nodiscard]] std::span<const float> anchor(std::size_t fragment) const;
  // Returns the number of local steps so far.
  [[nodiscard]] std::uint64_t step() const;
  // Returns whether an exchange was started and not applied.
  [[nodiscard]] bool under_way(std::size_t fragment) const;
  // Returns whether there were local steps since the last exchange of a fragment was started.
  [[nodiscard]] bool has_steps(std::size_t fragment) const;

  // Sets the parameters from which all ranks start: the same bits on all of them.
  void set_anchor(std::size_t fragment, std::span<const float> parameters);

  // Counts a local step and returns what is to be done after it, the same on all ranks.
  [[nodiscard]] LocalStepsDue advance();
  // Starts the exchange of a fragment and returns at once.
  void start(std::size_t fragment, std::span<const float> parameters);
  // Waits for at most `limit`; returns whether the exchange has ended.
  [[nodiscard]] bool wait(std::size_t fragment, Seconds limit);
  // Waits for the exchange of a fragment, does the outer step and replaces the parameters. Throws
  // what the session throws; anchor and parameters are then as before. After NaN or Inf
  // (Error::is_nonfinite) training may go on, and the next round sends these steps as well.
  Report apply(std::size_t fragment, std::span<float> parameters);

  // Saves anchor, outer momentum, step and exchanges under way, for which it waits. Session and
  // parameters must be saved with it. Throws Error{bad_state} after an exchange that failed:
  // the session may have kept a difference that the parameters still hold, too.
  [[nodiscard]] std::vector<std::byte> save_bytes();
  // Throws Error{bad_state} for bytes that are damaged, or of another world, rank, model or
  // settings; nothing is then changed.
  void load_bytes(std::span<const std::byte> bytes);

 private:
  struct THINREDUCE_HIDDEN Implementation;
  std::unique_ptr<Implementation> own_;
};

}  // namespace thinreduce

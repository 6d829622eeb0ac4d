// One rank's copy of the network with its optimizer and session. This header hides libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/gradients.h"
#include "apps/train/options.h"
#include "thinreduce/engine/session.h"

namespace thinreduce::train {

struct StepResult {
  bool meet = false;  // whether any rank wants a new world; equal on all ranks
  double loss = 0;    // mean over the ranks; with local steps this rank's own
  // Whether any rank was asked to stop, or all were asked to leave; equal on all ranks.
  bool stop = false;
  bool save = false;  // whether any rank wants a checkpoint; equal on all ranks
  double step_seconds = 0;
  double compute_seconds = 0;
  double exposed_seconds = 0;  // spent waiting for the exchange after backward
  std::uint64_t bytes_sent = 0;
  Report report;
};

struct StepSettings {
  std::uint64_t step = 0;  // counts from 0
  double learning_rate = 0;
  bool stop = false;   // whether this rank was asked to stop
  bool save = false;   // whether this rank wants a checkpoint after the step
  bool meet = false;   // whether this rank knows of a new rank that waits
  bool leave = false;  // whether this rank leaves after the step
  bool last = false;   // whether the run ends with this step; the same on all ranks
  const apps::GradientWriter* record = nullptr;
};

struct Evaluation {
  std::optional<double> accuracy;  // none for a language model
  double loss = 0;                 // mean over images or characters
  std::size_t samples = 0;
};

class Replica {
 public:
  // `data` must outlive this. The transport is also used between steps.
  Replica(const TrainOptions& options, const Dataset& data, std::shared_ptr<Transport> transport);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  [[nodiscard]] std::size_t parameters() const;
  [[nodiscard]] std::size_t steps_per_epoch() const;
  [[nodiscard]] const std::vector<BucketLayout>& layouts() const;

  StepResult step(const StepSettings& settings);
  // Goes on in a new world. A step that failed and that all ranks have completed nevertheless is
  // applied. Ranks that join get the parameters and the optimizer.
  Reconfiguration reconfigure(std::shared_ptr<Transport> transport);
  // Splits the samples among the ranks; every rank gets the result.
  Evaluation evaluate(std::size_t samples);
  // Throws Error{mismatch} naming the ranks whose parameters differ from rank 0's; with local steps
  // the parameters that all ranks share.
  void check_replicas(std::uint64_t step);

  // Convert parameters, buffers and optimizer to bytes, and back. The session saves itself.
  [[nodiscard]] std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes);
  // The same for local steps.
  [[nodiscard]] std::vector<std::byte> save_local_steps();
  void load_local_steps(std::span<const std::byte> bytes);
  Session& session();

 private:
  class Torch;
  std::unique_ptr<Torch> torch_;
};

}  // namespace thinreduce::train

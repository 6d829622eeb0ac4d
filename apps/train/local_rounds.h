// The rounds of local-step training over a network of libtorch: what is exchanged after a step, the
// parameters that all ranks share, and their saved state.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/engine/local_steps.h"

namespace thinreduce::train {

class LocalRounds {
 public:
  // `network` and `session` must outlive this. begin() must follow.
  LocalRounds(Session& session, const LocalStepsOptions& options, torch::nn::Module& network);

  // Lets the first round begin with the network's parameters, which must have the same bits on all
  // ranks.
  void begin();
  // Returns whether there were local steps.
  [[nodiscard]] bool begun() const { return steps_.step() > 0; }

  // Counts a local step and starts what is due after it; apply() must follow.
  void start_due();
  // Waits for the exchanges that are due and moves the parameters.
  Report apply_due();
  // Exchanges all fragments that have changed now, so that all ranks have the same parameters.
  Report synchronize();
  // Returns a hash of the parameters that all ranks share.
  [[nodiscard]] std::uint64_t shared_checksum() const;

  // Gives the network the parameters that all ranks share, and its own again.
  void show_shared();
  void show_own();

  [[nodiscard]] std::vector<std::byte> save() { return steps_.save_bytes(); }
  void load(std::span<const std::byte> bytes) { steps_.load_bytes(bytes); }

 private:
  [[nodiscard]] std::vector<float> read(std::size_t fragment) const;
  void write(std::size_t fragment, std::span<const float> values);
  Report apply(const std::vector<std::size_t>& fragments);

  torch::nn::Module& network_;
  LocalSteps steps_;
  std::vector<std::size_t> due_;         // fragments to apply
  std::vector<std::vector<float>> own_;  // while the network has the shared parameters
};

}  // namespace thinreduce::train

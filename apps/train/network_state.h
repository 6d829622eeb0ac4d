// The parameters and buffers of a network as bytes.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/models.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::train {

// Convert parameters, buffers and optimizer to bytes, and back. Loading replaces the tensors of the
// parameters.
[[nodiscard]] std::vector<std::byte> save_network(const Network& network,
                                                  const torch::optim::Optimizer& optimizer);
void load_network(std::span<const std::byte> bytes, Network& network,
                  torch::optim::Optimizer& optimizer);

[[nodiscard]] std::uint64_t parameters_checksum(const Network& network);

// Copies rank 0's running statistics of batch norm to all ranks. Only an evaluation uses them;
// while a network trains, batch norm takes the statistics of the batch.
void broadcast_buffers(Network& network, Transport& transport, Seconds timeout);

}  // namespace thinreduce::train

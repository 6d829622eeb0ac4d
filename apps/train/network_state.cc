#include "apps/train/network_state.h"

#include <cstring>
#include <sstream>

#include "thinreduce/collective/broadcast.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::train {
namespace {

std::span<const std::byte> tensor_bytes(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

std::vector<std::byte> save_network(const Network& network,
                                    const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive network_archive;
  torch::serialize::OutputArchive optimizer_archive;
  network.save(network_archive);
  optimizer.save(optimizer_archive);
  archive.write("network", network_archive);
  archive.write("optimizer", optimizer_archive);
  std::ostringstream out;
  archive.save_to(out);
  const std::string text = out.str();
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

void load_network(std::span<const std::byte> bytes, Network& network,
                  torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  torch::serialize::InputArchive network_archive;
  torch::serialize::InputArchive optimizer_archive;
  archive.read("network", network_archive);
  archive.read("optimizer", optimizer_archive);
  network.load(network_archive);
  optimizer.load(optimizer_archive);
}

std::uint64_t parameters_checksum(const Network& network) {
  std::vector<std::uint64_t> sums;
  for (const auto& parameter : network.parameters()) {
    sums.push_back(checksum(tensor_bytes(parameter)));
  }
  return checksum(bytes_of(sums));
}

void broadcast_buffers(Network& network, Transport& transport, Seconds timeout) {
  std::vector<torch::Tensor> buffers;
  for (const auto& buffer : network.buffers()) {
    if (buffer.is_floating_point()) buffers.push_back(buffer);
  }
  if (buffers.empty() || transport.size() == 1) return;
  std::vector<std::byte> message;
  for (const auto& buffer : buffers) {
    const auto view = tensor_bytes(buffer);
    message.insert(message.end(), view.begin(), view.end());
  }
  Exchange exchange(transport, timeout, {});
  broadcast(exchange, 0, message);
  const std::byte* from = message.data();
  for (auto& buffer : buffers) {
    std::memcpy(buffer.data_ptr(), from, buffer.nbytes());
    from += buffer.nbytes();
  }
}

}  // namespace thinreduce::train

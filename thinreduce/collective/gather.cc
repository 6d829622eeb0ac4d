#include "thinreduce/collective/gather.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "thinreduce/collective/framed.h"

namespace thinreduce {

void gather(Exchange& exchange, std::span<const std::byte> own, std::size_t limit,
            const OnPayload& on_payload) {
  const int world = exchange.size();
  const int rank = exchange.rank();
  exchange.payload_bytes += kFrameHeaderBytes + own.size();

  std::vector<std::unique_ptr<FramedReceive>> receives(static_cast<std::size_t>(world));
  for (int distance = 1; distance < world; ++distance) {
    const int from = (rank + world - distance) % world;
    receives[static_cast<std::size_t>(from)] =
        std::make_unique<FramedReceive>(exchange, from, limit);
  }
  FrameHeaderBytes header{};
  exchange.timed(Stage::encode, [&] { header = encode_header(exchange.id(), rank, own); });
  std::vector<FramedSend> sends;
  for (int distance = 1; distance < world; ++distance) {
    sends.emplace_back(exchange, (rank + distance) % world, header, own);
  }
  // In the order of arrival on a busy link: each rank's left neighbour sends to it first.
  for (int distance = 1; distance < world; ++distance) {
    receives[static_cast<std::size_t>((rank + world - distance) % world)]->wait_header(exchange);
  }
  for (int distance = 1; distance < world; ++distance) {
    receives[static_cast<std::size_t>((rank + world - distance) % world)]->wait_payload(exchange);
  }
  for (int from = 0; from < world; ++from) {
    const auto payload = from == rank ? own : receives[static_cast<std::size_t>(from)]->payload();
    exchange.timed(Stage::decode, [&] { on_payload(from, payload); });
  }
  for (auto& send : sends) send.wait(exchange);
}

}  // namespace thinreduce

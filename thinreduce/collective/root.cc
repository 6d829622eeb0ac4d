#include "thinreduce/collective/root.h"

#include <memory>

#include "thinreduce/collective/broadcast.h"
#include "thinreduce/collective/framed.h"
#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

constexpr BroadcastOptions kUncounted{.is_payload = false};

std::vector<std::byte> collect_and_answer(Exchange& exchange, std::span<const std::byte> own,
                                          std::size_t limit, const Answer& answer) {
  std::vector<std::unique_ptr<FramedReceive>> receives(static_cast<std::size_t>(exchange.size()));
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (rank == exchange.rank()) continue;
    receives[static_cast<std::size_t>(rank)] =
        std::make_unique<FramedReceive>(exchange, rank, limit);
  }
  for (auto& receive : receives) {
    if (receive) receive->wait_header(exchange);
  }
  std::vector<std::span<const std::byte>> payloads;
  for (auto& receive : receives) {
    if (receive) receive->wait_payload(exchange);
    payloads.push_back(receive ? receive->payload() : own);
  }
  std::vector<std::byte> reply;
  exchange.keep_original_if_alone();
  exchange.timed(Stage::decode, [&] { reply = answer(payloads); });
  ensure(reply.size() <= limit, "an answer must keep its limit", reply.size(), limit);
  return reply;
}

}  // namespace

std::vector<std::byte> through_root(Exchange& exchange, int root, std::span<const std::byte> own,
                                    std::size_t limit, const Answer& answer) {
  exchange.payload_bytes += kFrameHeaderBytes + own.size();
  std::vector<std::byte> reply;
  FrameHeaderBytes header{};
  if (exchange.rank() == root) {
    reply = collect_and_answer(exchange, own, limit, answer);
    header = encode_header(exchange.id(), root, reply);
  } else {
    exchange.timed(Stage::encode,
                   [&] { header = encode_header(exchange.id(), exchange.rank(), own); });
    FramedSend(exchange, root, header, own).wait(exchange);
  }
  // The answer's header is broadcast first, so that all ranks know its length.
  broadcast(exchange, root, header, kUncounted);
  if (exchange.rank() == root) {
    broadcast(exchange, root, reply, kUncounted);
    return reply;
  }
  const FrameHeader announced = decode_header(header, root);
  check_announced(announced, exchange, root, limit);
  reply.resize(announced.payload_bytes);
  broadcast(exchange, root, reply, kUncounted);
  exchange.timed(Stage::decode, [&] { check_payload(announced, reply); });
  return reply;
}

}  // namespace thinreduce

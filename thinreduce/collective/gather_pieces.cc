#include "thinreduce/collective/gather_pieces.h"

#include <memory>
#include <utility>

#include "thinreduce/collective/framed.h"

namespace thinreduce {
namespace {

// How many pieces are sent before the first is taken. Ranks that share a machine take turns of
// several milliseconds on its cores: so much must be on its way meanwhile.
constexpr std::size_t kAhead = 8;

class PieceGather {
 public:
  PieceGather(Exchange& exchange, const PieceWork& work, PieceMemory& memory)
      : exchange_(exchange),
        work_(work),
        memory_(memory),
        headers_(work.pieces),
        receives_((kAhead + 1) * world()),
        payloads_(world()) {
    memory_.own.resize(work.pieces);
    sends_.reserve(work.pieces * world());
  }

  // A piece's header is waited for a turn before its payload: only then the payload's receive can
  // be posted, and some transports move nothing before it is.
  void run() {
    for (std::size_t turn = 0; turn < work_.pieces + kAhead; ++turn) {
      if (turn < work_.pieces) send(turn);
      if (turn + 1 >= kAhead && turn + 1 - kAhead < work_.pieces) wait_headers(turn + 1 - kAhead);
      if (turn >= kAhead) take(turn - kAhead);
    }
    for (auto& sent : sends_) sent.wait(exchange_);
  }

 private:
  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(exchange_.size()); }

  // Calls `visit(rank)` for all other ranks in the order in which their messages come when links
  // are busy: each rank's left neighbour sends to it first.
  template <typename Visit>
  void for_senders(Visit&& visit) {
    for (std::size_t distance = 1; distance < world(); ++distance) {
      visit((static_cast<std::size_t>(exchange_.rank()) + world() - distance) % world());
    }
  }
  [[nodiscard]] std::unique_ptr<FramedReceive>& receive(std::size_t piece, std::size_t rank) {
    return receives_[piece % (kAhead + 1) * world() + rank];
  }

  void send(std::size_t piece) {
    for_senders([&](std::size_t rank) {
      std::vector<std::byte> buffer;
      if (!memory_.spare.empty()) {
        buffer = std::move(memory_.spare.back());
        memory_.spare.pop_back();
      }
      receive(piece, rank) = std::make_unique<FramedReceive>(exchange_, static_cast<int>(rank),
                                                             work_.limit, std::move(buffer));
    });
    std::vector<std::byte>& own = memory_.own[piece];
    exchange_.timed(Stage::encode, [&] {
      work_.write(piece, own);
      headers_[piece] = encode_header(exchange_.id(), exchange_.rank(), own);
    });
    exchange_.payload_bytes += kFrameHeaderBytes + own.size();
    for (int distance = 1; distance < exchange_.size(); ++distance) {
      sends_.emplace_back(exchange_, (exchange_.rank() + distance) % exchange_.size(),
                          headers_[piece], own);
    }
  }

  void wait_headers(std::size_t piece) {
    for_senders([&](std::size_t rank) { receive(piece, rank)->wait_header(exchange_); });
  }

  void take(std::size_t piece) {
    payloads_[static_cast<std::size_t>(exchange_.rank())] = memory_.own[piece];
    for_senders([&](std::size_t rank) {
      receive(piece, rank)->wait_payload(exchange_);
      payloads_[rank] = receive(piece, rank)->payload();
    });
    exchange_.timed(Stage::decode, [&] { work_.take(piece, payloads_); });
    for_senders([&](std::size_t rank) {
      memory_.spare.push_back(receive(piece, rank)->release());
      receive(piece, rank).reset();
    });
  }

  Exchange& exchange_;
  const PieceWork& work_;
  PieceMemory& memory_;
  std::vector<FrameHeaderBytes> headers_;
  std::vector<FramedSend> sends_;
  std::vector<std::unique_ptr<FramedReceive>> receives_;  // of kAhead + 1 pieces
  std::vector<std::span<const std::byte>> payloads_;
};

}  // namespace

void gather_pieces(Exchange& exchange, const PieceWork& work, PieceMemory& memory) {
  PieceGather(exchange, work, memory).run();
}

}  // namespace thinreduce

#include "thinreduce/collective/gather.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "thinreduce/collective/framed.h"

namespace thinreduce {
namespace {

// Pieces that are sent before the first is taken. Ranks that share a machine get turns of several
// milliseconds on its cores; the pieces in flight must last that long.
constexpr std::size_t kAhead = 8;

class PieceGather {
 public:
  PieceGather(Exchange& exchange, const PieceWork& work, SpareBuffers& spare)
      : exchange_(exchange),
        work_(work),
        spare_(spare),
        ahead_(std::min(kAhead, work.pieces)),
        own_(work.pieces),
        headers_(work.pieces),
        receives_((ahead_ + work.batch) * world()),
        payloads_(work.batch * world()) {
    sends_.reserve(work.pieces * world());
  }

  // A piece's header is awaited one turn before its payload: the receive of the payload can be
  // posted only then, and some transports transfer nothing before that.
  void run() {
    for (std::size_t turn = 0; turn < work_.pieces + ahead_; ++turn) {
      if (turn < work_.pieces) send(turn);
      if (turn + 1 >= ahead_ && turn + 1 - ahead_ < work_.pieces) wait_headers(turn + 1 - ahead_);
      if (turn >= ahead_) take(turn - ahead_);
    }
    for (auto& sent : sends_) sent.wait(exchange_);
  }

 private:
  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(exchange_.size()); }

  // Calls `visit(rank)` for all other ranks in the order in which their messages arrive on busy
  // links: the left neighbour sends to this rank first.
  template <typename Visit>
  void for_senders(Visit&& visit) {
    for (std::size_t distance = 1; distance < world(); ++distance) {
      visit((static_cast<std::size_t>(exchange_.rank()) + world() - distance) % world());
    }
  }
  // Returns the batch that a piece is in.
  [[nodiscard]] Range batch_of(std::size_t piece) const {
    const std::size_t begin = piece / work_.batch * work_.batch;
    return {begin, std::min(begin + work_.batch, work_.pieces)};
  }
  [[nodiscard]] std::unique_ptr<FramedReceive>& receive(std::size_t piece, std::size_t rank) {
    return receives_[piece % (ahead_ + work_.batch) * world() + rank];
  }

  void send(std::size_t piece) {
    for_senders([&](std::size_t rank) {
      std::vector<std::byte> buffer;
      if (!spare_.empty()) {
        buffer = std::move(spare_.back());
        spare_.pop_back();
      }
      receive(piece, rank) = std::make_unique<FramedReceive>(exchange_, static_cast<int>(rank),
                                                             work_.limit, std::move(buffer));
    });
    exchange_.timed(Stage::encode, [&] {
      if (piece % work_.batch == 0) work_.write(batch_of(piece));
      own_[piece] = work_.piece(piece);
      headers_[piece] = encode_header(exchange_.id(), exchange_.rank(), own_[piece]);
    });
    exchange_.payload_bytes += kFrameHeaderBytes + own_[piece].size();
    for (int distance = 1; distance < exchange_.size(); ++distance) {
      sends_.emplace_back(exchange_, (exchange_.rank() + distance) % exchange_.size(),
                          headers_[piece], own_[piece]);
    }
  }

  void wait_headers(std::size_t piece) {
    for_senders([&](std::size_t rank) { receive(piece, rank)->wait_header(exchange_); });
  }

  void take(std::size_t piece) {
    const Range batch = batch_of(piece);
    const auto payloads = std::span(payloads_).subspan((piece - batch.begin) * world(), world());
    payloads[static_cast<std::size_t>(exchange_.rank())] = own_[piece];
    for_senders([&](std::size_t rank) {
      receive(piece, rank)->wait_payload(exchange_);
      payloads[rank] = receive(piece, rank)->payload();
    });
    if (piece + 1 < batch.end) return;
    exchange_.keep_original_if_alone();
    exchange_.timed(Stage::decode,
                    [&] { work_.take(batch, std::span(payloads_).first(batch.size() * world())); });
    for (std::size_t taken = batch.begin; taken < batch.end; ++taken) {
      for_senders([&](std::size_t rank) {
        spare_.push_back(receive(taken, rank)->release());
        receive(taken, rank).reset();
      });
    }
  }

  Exchange& exchange_;
  const PieceWork& work_;
  SpareBuffers& spare_;
  std::size_t ahead_;
  std::vector<std::span<const std::byte>> own_;
  std::vector<FrameHeaderBytes> headers_;
  std::vector<FramedSend> sends_;
  std::vector<std::unique_ptr<FramedReceive>> receives_;  // of ahead_ + batch pieces
  std::vector<std::span<const std::byte>> payloads_;
};

}  // namespace

void gather(Exchange& exchange, std::span<const std::byte> own, std::size_t limit,
            const OnPayload& on_payload) {
  const PieceWork one{.pieces = 1,
                      .limit = limit,
                      .write = [](Range) {},
                      .piece = [&](std::size_t) { return own; },
                      .take =
                          [&](Range, auto payloads) {
                            for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
                              on_payload(static_cast<int>(rank), payloads[rank]);
                            }
                          }};
  // Its payloads may be as large as a bucket: their buffers are not kept.
  SpareBuffers unused;
  PieceGather(exchange, one, unused).run();
}

void gather_pieces(Exchange& exchange, const PieceWork& work) {
  SpareBuffers unused;
  PieceGather(exchange, work, exchange.spare == nullptr ? unused : *exchange.spare).run();
}

}  // namespace thinreduce

#include "thinreduce/collective/owner_sum.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "thinreduce/collective/checked.h"

namespace thinreduce {
namespace {

class OwnerSum {
 public:
  OwnerSum(Exchange& exchange, SumCodec& codec, const OwnerSumOptions& options)
      : exchange_(exchange), codec_(codec), world_(exchange.size()), rank_(exchange.rank()) {
    pieces_ =
        messages_per_chunk({0, codec.units()}, world(), codec.unit_bytes(), options.piece_bytes);
    ahead_ = std::clamp<std::size_t>(options.ahead, 1, pieces_);
    arriving_ = std::vector<Part>((ahead_ + 1) * world());
    parts_ = std::vector<std::optional<CheckedSend>>(arriving_.size());
    answers_ = std::vector<std::optional<CheckedReceive>>(arriving_.size());
  }

  // In turn t a rank sends its parts of piece t, adds up its own piece t - ahead and sends it to
  // all, and takes the answers of piece t - 2 ahead. The rank that is furthest behind never waits
  // for another to go on, so some rank always can.
  void run() {
    for (std::size_t turn = 0; turn < pieces_ + 2 * ahead_; ++turn) {
      if (turn < pieces_) {
        post_parts(turn);
        send_parts(turn);
      }
      if (turn >= ahead_ && turn - ahead_ < pieces_) {
        post_answers(turn - ahead_);
        answer(turn - ahead_);
      }
      if (turn >= 2 * ahead_) take_answers(turn - 2 * ahead_);
    }
    finish();
  }

  // The turns of run() when all pieces are sent ahead.
  void send_all_parts() {
    for (std::size_t index = 0; index < pieces_; ++index) {
      post_parts(index);
      send_parts(index);
    }
  }
  void send_all_answers() {
    for (std::size_t index = 0; index < pieces_; ++index) {
      post_answers(index);
      answer(index);
    }
  }
  void take_all_answers() {
    for (std::size_t index = 0; index < pieces_; ++index) take_answers(index);
    finish();
  }

 private:
  // A part of another rank in flight.
  struct Part {
    std::vector<std::byte> scratch;
    std::optional<CheckedReceive> pending;
  };

  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(world_); }
  [[nodiscard]] std::size_t slot(std::size_t index, int rank) const {
    return index % (ahead_ + 1) * world() + static_cast<std::size_t>(rank);
  }
  [[nodiscard]] Range piece(int owner, std::size_t index) const {
    return cut(cut({0, codec_.units()}, world(), static_cast<std::size_t>(owner)), pieces_, index);
  }

  // Call visit(rank) for all other ranks: in the order in which their parts are added, and in the
  // order in which this rank sends to them.
  template <typename Visit>
  void for_senders(Visit&& visit) const {
    for (int distance = 1; distance < world_; ++distance) visit((rank_ + distance) % world_);
  }
  template <typename Visit>
  void for_receivers(Visit&& visit) const {
    for (int distance = world_ - 1; distance > 0; --distance) visit((rank_ + distance) % world_);
  }

  void post_parts(std::size_t index) {
    const Range own = piece(rank_, index);
    if (own.size() == 0) return;
    const std::size_t bytes = codec_.wire(own, 1).size();
    for_senders([&](int rank) {
      Part& part = arriving_[slot(index, rank)];
      part.scratch.resize(bytes);
      part.pending.emplace(exchange_, rank, part.scratch);
    });
  }

  void send_parts(std::size_t index) {
    for_receivers([&](int owner) {
      const Range range = piece(owner, index);
      if (range.size() == 0) return;
      exchange_.timed(Stage::encode, [&] { codec_.encode(range); });
      parts_[slot(index, owner)].emplace(exchange_, owner, codec_.wire(range, 1));
    });
  }

  // An answer is received where the part may have been sent from: that send must have completed.
  void post_answers(std::size_t index) {
    for_receivers([&](int owner) {
      const Range range = piece(owner, index);
      if (range.size() == 0) return;
      auto& part = parts_[slot(index, owner)];
      part->wait(exchange_);
      part.reset();
      answers_[slot(index, owner)].emplace(exchange_, owner, codec_.wire(range, world_));
    });
  }

  void answer(std::size_t index) {
    const Range own = piece(rank_, index);
    if (own.size() == 0) return;
    exchange_.timed(Stage::encode, [&] { codec_.encode(own); });
    int summed = 1;
    for_senders([&](int rank) {
      Part& part = arriving_[slot(index, rank)];
      part.pending->wait(exchange_);
      exchange_.timed(Stage::decode, [&] { codec_.add_part(own, summed, part.scratch, rank); });
      part.pending.reset();
      ++summed;
    });
    const auto bytes = codec_.wire(own, world_);
    std::optional<std::uint64_t> hash;
    for_receivers([&](int rank) { sent_answers_.emplace_back(exchange_, rank, bytes, hash); });
    exchange_.timed(Stage::decode, [&] { codec_.decode(own, rank_); });
  }

  void finish() {
    for (auto& send : sent_answers_) send.wait(exchange_);
  }

  void take_answers(std::size_t index) {
    for_senders([&](int owner) {
      const Range range = piece(owner, index);
      if (range.size() == 0) return;
      auto& answer = answers_[slot(index, owner)];
      answer->wait(exchange_);
      answer.reset();
      exchange_.timed(Stage::decode, [&] { codec_.decode(range, owner); });
    });
  }

  Exchange& exchange_;
  SumCodec& codec_;
  int world_;
  int rank_;
  std::size_t pieces_ = 0;  // per range
  std::size_t ahead_ = 1;
  std::vector<Part> arriving_;                          // by slot
  std::vector<std::optional<CheckedSend>> parts_;       // the same
  std::vector<std::optional<CheckedReceive>> answers_;  // the same
  std::vector<CheckedSend> sent_answers_;
};

// Counts the bytes of the payload, averaged over parts and answers.
void count_payload(Exchange& exchange, SumCodec& codec) {
  const Range all{0, codec.units()};
  exchange.payload_bytes +=
      (codec.wire(all, 1).size() + codec.wire(all, exchange.size()).size()) / 2;
}

}  // namespace

class OwnerSumInParts::Sum : public OwnerSum {
 public:
  using OwnerSum::OwnerSum;
};

OwnerSumInParts::OwnerSumInParts(Exchange& exchange, SumCodec& codec) {
  if (codec.units() == 0) return;
  count_payload(exchange, codec);
  OwnerSumOptions options;
  options.ahead = codec.units();
  sum_ = std::make_unique<Sum>(exchange, codec, options);
}
OwnerSumInParts::~OwnerSumInParts() = default;

void OwnerSumInParts::send_parts() {
  if (sum_) sum_->send_all_parts();
}
void OwnerSumInParts::send_answers() {
  if (sum_) sum_->send_all_answers();
}
void OwnerSumInParts::take_answers() {
  if (sum_) sum_->take_all_answers();
}

void owner_all_reduce(Exchange& exchange, SumCodec& codec, const OwnerSumOptions& options) {
  if (codec.units() == 0) return;
  count_payload(exchange, codec);
  if (exchange.size() > 1) return OwnerSum(exchange, codec, options).run();
  const Range all{0, codec.units()};
  exchange.timed(Stage::encode, [&] { codec.encode(all); });
  exchange.keep_original_if_alone();
  exchange.timed(Stage::decode, [&] { codec.decode(all, exchange.rank()); });
}

std::uint64_t owner_bytes_sent(int rank, int world, std::size_t units, std::size_t unit_bytes,
                               const OwnerSumOptions& options) {
  const auto ranks = static_cast<std::size_t>(world);
  const std::size_t pieces = messages_per_chunk({0, units}, ranks, unit_bytes, options.piece_bytes);
  std::uint64_t bytes = 0;
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    const std::size_t range = cut({0, units}, ranks, owner).size();
    const std::uint64_t once = range * unit_bytes + std::min(pieces, range) * kMessageChecksumBytes;
    bytes += owner == static_cast<std::size_t>(rank) ? (ranks - 1) * once : once;
  }
  return bytes;
}

}  // namespace thinreduce

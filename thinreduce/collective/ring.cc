#include "thinreduce/collective/ring.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/chunks.h"

namespace thinreduce {
namespace {

class Ring {
 public:
  Ring(Exchange& exchange, SumCodec& codec, const RingOptions& options)
      : exchange_(exchange),
        codec_(codec),
        world_(exchange.size()),
        rank_(exchange.rank()),
        right_((rank_ + 1) % world_),
        left_((rank_ + world_ - 1) % world_),
        receives_(options.receives_ahead) {
    segments_ =
        messages_per_chunk({0, codec.units()}, world(), codec.unit_bytes(), options.segment_bytes);
  }

  // Transfers are numbered: hop h moves segment s as transfer h * segments + s. The segment that
  // arrives as transfer t leaves, with this rank's part added, as transfer t + segments.
  void run() {
    post_receives(0);
    for (std::size_t s = 0; s < segments_; ++s) {
      const Range range = segment(static_cast<std::size_t>(rank_), s);
      exchange_.timed(Stage::encode, [&] { codec_.encode(range); });
      send(range, 1);
    }
    for (std::size_t t = 0; t < transfers(); ++t) {
      post_receives(t);
      take(t);
    }
    release_sends(sent_);
  }

 private:
  struct Receive {
    std::vector<std::byte> scratch;
    std::span<std::byte> bytes;
    std::optional<CheckedReceive> pending;  // none for an empty segment
  };

  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(world_); }
  [[nodiscard]] std::size_t transfers() const { return 2 * (world() - 1) * segments_; }

  [[nodiscard]] Range segment(std::size_t chunk, std::size_t s) const {
    return cut(cut({0, codec_.units()}, world(), chunk), segments_, s);
  }

  // Return the segment that arrives as transfer t, and the number of ranks summed in it.
  [[nodiscard]] Range incoming(std::size_t t) const {
    const std::size_t hop = t / segments_;
    const std::size_t chunk = (static_cast<std::size_t>(rank_) + 2 * world() - 1 - hop) % world();
    return segment(chunk, t % segments_);
  }
  [[nodiscard]] int summed(std::size_t t) const {
    return static_cast<int>(std::min(t / segments_ + 1, world()));
  }

  // Posts receives for transfers before `current` + receives_.size().
  void post_receives(std::size_t current) {
    for (; posted_ < std::min(current + receives_.size(), transfers()); ++posted_) {
      Receive& receive = receives_[posted_ % receives_.size()];
      const Range range = incoming(posted_);
      receive.pending.reset();
      if (summed(posted_) < world_) {
        // A partial sum, to which this rank will add its own part.
        const auto bytes = codec_.wire(range, summed(posted_)).size();
        receive.scratch.resize(std::max(receive.scratch.size(), bytes));
        receive.bytes = std::span(receive.scratch).first(bytes);
      } else {
        // The complete sum is received in place. This rank sent its own partial sum from there
        // world - 1 hops ago; that send must have completed.
        const std::size_t sent_as = posted_ - (world() - 1) * segments_;
        if (sent_as >= sent_) return;
        if (sent_as >= released_) release_sends(releasable(sent_as, current));
        receive.bytes = codec_.wire(range, world_);
      }
      if (range.size() > 0) {
        receive.pending.emplace(exchange_, left_, receive.bytes);
      }
    }
  }

  // Processes transfer t: adds to a partial sum, forwards, and decodes a complete sum.
  void take(std::size_t t) {
    const Range range = incoming(t);
    Receive& receive = receives_[t % receives_.size()];
    const bool partial = summed(t) < world_;
    if (range.size() == 0) {
      if (t + segments_ < transfers()) send(range, 0);
      return;
    }
    if (partial) exchange_.timed(Stage::encode, [&] { codec_.encode(range); });
    receive.pending->wait(exchange_);
    if (partial) {
      exchange_.timed(Stage::decode, [&] { codec_.add(range, summed(t), receive.bytes, left_); });
    }
    const int now_summed = partial ? summed(t) + 1 : world_;
    if (t + segments_ < transfers()) {
      // A complete sum is passed on as it came, with the hash that was just checked.
      std::optional<std::uint64_t> hash;
      if (!partial) hash = receive.pending->hash();
      send(range, now_summed, hash);
    }
    if (now_summed == world_) {
      exchange_.timed(Stage::decode, [&] { codec_.decode(range, partial ? rank_ : left_); });
    }
  }

  void send(Range range, int over, std::optional<std::uint64_t> hash = std::nullopt) {
    sends_.emplace_back();
    if (range.size() > 0) {
      sends_.back().emplace(exchange_, right_, codec_.wire(range, over), hash);
    }
    ++sent_;
  }

  // Returns how many sends to release when number `needed` must be, while transfer `current` is
  // next. One wait releases several: those up to half way to `current`, which the right neighbour
  // has most likely received. It waits for no send from `current` on, so it does not wait for this
  // rank: whoever is furthest behind can go on.
  [[nodiscard]] static std::size_t releasable(std::size_t needed, std::size_t current) {
    return needed + 1 + (current > needed ? (current - needed) / 2 : 0);
  }

  // Waits for the first `count` sends; for the last one first, because they complete in order, so
  // that the others need not be waited for.
  void release_sends(std::size_t count) {
    if (count <= released_) return;
    if (auto& last = sends_[count - released_ - 1]) {
      last->wait(exchange_);
      last.reset();
    }
    for (; released_ < count; ++released_) {
      if (sends_.front()) sends_.front()->wait(exchange_);
      sends_.pop_front();
    }
  }

  Exchange& exchange_;
  SumCodec& codec_;
  int world_;
  int rank_;
  int right_;
  int left_;
  std::size_t segments_ = 1;
  std::size_t posted_ = 0;    // receives started
  std::size_t sent_ = 0;      // sends started
  std::size_t released_ = 0;  // sends completed
  std::vector<Receive> receives_;
  std::deque<std::optional<CheckedSend>> sends_;  // none for an empty segment
};

// Returns the bytes of the whole payload in its wire form, averaged over the 2(N-1) hops: partial
// sums of 1 to N-1 ranks in the first half, complete sums in the second.
std::size_t average_bytes(SumCodec& codec, int world) {
  const Range all{0, codec.units()};
  if (world == 1) return codec.wire(all, 1).size();
  const auto hops = static_cast<std::size_t>(world - 1);
  std::size_t bytes = hops * codec.wire(all, world).size();
  for (int summed = 1; summed < world; ++summed) bytes += codec.wire(all, summed).size();
  return bytes / (2 * hops);
}

}  // namespace

void ring_all_reduce(Exchange& exchange, SumCodec& codec, const RingOptions& options) {
  if (codec.units() == 0) return;
  exchange.payload_bytes += average_bytes(codec, exchange.size());
  if (exchange.size() == 1) {
    const Range all{0, codec.units()};
    exchange.timed(Stage::encode, [&] { codec.encode(all); });
    exchange.keep_original_if_alone();
    exchange.timed(Stage::decode, [&] { codec.decode(all, exchange.rank()); });
    return;
  }
  Ring(exchange, codec, options).run();
}

std::uint64_t ring_bytes_sent(int rank, int world, std::size_t units, std::size_t unit_bytes,
                              const RingOptions& options) {
  const auto parts = static_cast<std::size_t>(world);
  const std::size_t segments =
      messages_per_chunk({0, units}, parts, unit_bytes, options.segment_bytes);
  std::uint64_t bytes = 0;
  for (std::size_t hop = 0; hop + 2 < 2 * parts; ++hop) {
    const std::size_t chunk = (static_cast<std::size_t>(rank) + 2 * parts - hop) % parts;
    const Range range = cut({0, units}, parts, chunk);
    bytes += range.size() * unit_bytes + std::min(segments, range.size()) * kMessageChecksumBytes;
  }
  return bytes;
}

}  // namespace thinreduce

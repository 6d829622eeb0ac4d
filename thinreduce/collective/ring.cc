#include "thinreduce/collective/ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

class Ring {
 public:
  Ring(Exchange& exchange, RingPayload& payload, const RingOptions& options)
      : exchange_(exchange),
        payload_(payload),
        world_(exchange.size()),
        rank_(exchange.rank()),
        right_((rank_ + 1) % world_),
        left_((rank_ + world_ - 1) % world_),
        receives_(options.receives_ahead) {
    const std::size_t longest_chunk = (payload.units() + world() - 1) / world();
    const std::size_t units =
        std::max<std::size_t>(1, options.segment_bytes / payload.unit_bytes());
    segments_ = std::max<std::size_t>(1, (longest_chunk + units - 1) / units);
  }

  // Transfers are numbered: hop h moves segment s as transfer h * segments + s. What comes in as
  // transfer t leaves, with this rank's part added, as transfer t + segments.
  void run() {
    post_receives(0);
    for (std::size_t s = 0; s < segments_; ++s) {
      const UnitRange range = segment(static_cast<std::size_t>(rank_), s);
      exchange_.timed(Stage::encode, [&] { payload_.encode(range); });
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
    Pending pending;  // null for an empty segment
  };

  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(world_); }
  [[nodiscard]] std::size_t transfers() const { return 2 * (world() - 1) * segments_; }

  [[nodiscard]] UnitRange segment(std::size_t chunk, std::size_t s) const {
    return cut(cut({0, payload_.units()}, world(), chunk), segments_, s);
  }

  // The segment that comes in as transfer t, and over how many ranks it is summed then.
  [[nodiscard]] UnitRange incoming(std::size_t t) const {
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
      const UnitRange range = incoming(posted_);
      receive.pending.reset();
      if (summed(posted_) < world_) {
        // A partial sum, to be added to this rank's own part.
        const auto bytes = payload_.wire(range, summed(posted_)).size();
        receive.scratch.resize(std::max(receive.scratch.size(), bytes));
        receive.bytes = std::span(receive.scratch).first(bytes);
      } else {
        // The complete sum goes straight to its place, from which this rank sent its own partial
        // sum world - 1 hops ago; that send must be over.
        const std::size_t sent_as = posted_ - (world() - 1) * segments_;
        if (sent_as >= sent_) return;
        release_sends(sent_as + 1);
        receive.bytes = payload_.wire(range, world_);
      }
      if (range.size() > 0) {
        receive.pending = exchange_.transport().receive(left_, Channel::data, receive.bytes);
      }
    }
  }

  // Works on transfer t: adds or keeps it, passes it on, decodes it when it is complete.
  void take(std::size_t t) {
    const UnitRange range = incoming(t);
    Receive& receive = receives_[t % receives_.size()];
    const bool partial = summed(t) < world_;
    if (range.size() == 0) {
      if (t + segments_ < transfers()) send(range, 0);
      return;
    }
    if (partial) exchange_.timed(Stage::encode, [&] { payload_.encode(range); });
    exchange_.wait(*receive.pending);
    if (partial) {
      exchange_.timed(Stage::decode, [&] { payload_.add(range, summed(t), receive.bytes); });
    }
    const int now_summed = partial ? summed(t) + 1 : world_;
    if (t + segments_ < transfers()) send(range, now_summed);
    if (now_summed == world_) exchange_.timed(Stage::decode, [&] { payload_.decode(range); });
  }

  void send(UnitRange range, int over) {
    sends_.push_back(range.size() == 0 ? nullptr
                                       : exchange_.transport().send(right_, Channel::data,
                                                                    payload_.wire(range, over)));
    ++sent_;
  }

  // Collects the first `count` sends.
  void release_sends(std::size_t count) {
    for (; released_ < count; ++released_) {
      if (sends_.front()) exchange_.wait(*sends_.front());
      sends_.pop_front();
    }
  }

  Exchange& exchange_;
  RingPayload& payload_;
  int world_;
  int rank_;
  int right_;
  int left_;
  std::size_t segments_ = 1;
  std::size_t posted_ = 0;    // receives
  std::size_t sent_ = 0;      // sends started
  std::size_t released_ = 0;  // sends collected
  std::vector<Receive> receives_;
  std::deque<Pending> sends_;
};

// Floats that are folded in place: by adding or by taking the maximum.
class FloatRing : public RingPayload {
 public:
  using Fold = void (*)(std::span<float> into, std::span<const float> in);

  FloatRing(std::span<float> values, int world, Fold fold, float scale)
      : values_(values), world_(world), fold_(fold), scale_(scale) {}

  [[nodiscard]] std::size_t units() const override { return values_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return sizeof(float); }
  [[nodiscard]] std::size_t chunk_bytes() const {
    return values_.size_bytes() / static_cast<std::size_t>(world_);
  }
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int /*summed*/) override {
    return std::as_writable_bytes(part(range));
  }
  void encode(UnitRange /*range*/) override {}
  void add(UnitRange range, int summed, std::span<const std::byte> incoming) override {
    if (factor(summed) != 1) {
      kernels::add_scale(part(range), floats(incoming), factor(summed));
    } else {
      fold_(part(range), floats(incoming));
    }
  }
  void decode(UnitRange /*range*/) override {}

 protected:
  [[nodiscard]] static std::span<const float> floats(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  // What the sum of a partial sum over `summed` ranks and this rank's part is multiplied with.
  [[nodiscard]] float factor(int summed) const { return summed + 1 == world_ ? scale_ : 1; }
  [[nodiscard]] std::span<float> part(UnitRange range) const {
    return values_.subspan(range.begin, range.size());
  }

 private:
  std::span<float> values_;
  int world_;
  Fold fold_;
  float scale_;
};

// Also looks for NaN and Inf while the values are in the cache for the addition: in this rank's
// own values, and at the first hop in those of the rank on the left, which sent them unseen.
class CheckedFloatRing final : public FloatRing {
 public:
  CheckedFloatRing(std::span<float> values, int world, float scale)
      : FloatRing(values, world, kernels::add, scale), found_{values.size(), values.size()} {}

  void add(UnitRange range, int summed, std::span<const std::byte> incoming) override {
    if (summed == 1) note(found_.left, range, kernels::first_nonfinite(floats(incoming)));
    note(found_.own, range,
         kernels::add_scale_checked(part(range), floats(incoming), factor(summed)));
  }

  [[nodiscard]] Nonfinite found() const { return found_; }

 private:
  static void note(std::size_t& first, UnitRange range, std::size_t at) {
    if (at < range.size()) first = std::min(first, range.begin + at);
  }

  Nonfinite found_;
};

// One receive fewer in flight: what comes in stays in the cache until it is added. Where a chunk
// has many segments, half as many of twice the size overlap just as well and cost half the
// messages.
RingOptions for_floats(RingOptions options, const FloatRing& payload) {
  constexpr std::size_t kMany = 16;
  options.receives_ahead = 2;
  if (payload.chunk_bytes() >= kMany * options.segment_bytes) options.segment_bytes *= 2;
  return options;
}

// Bytes of the whole payload in its wire form, averaged over the 2(N-1) hops: partial sums of 1 to
// N-1 ranks in the first half, complete sums in the second.
std::size_t average_bytes(RingPayload& payload, int world) {
  const UnitRange all{0, payload.units()};
  if (world == 1) return payload.wire(all, 1).size();
  const auto hops = static_cast<std::size_t>(world - 1);
  std::size_t bytes = hops * payload.wire(all, world).size();
  for (int summed = 1; summed < world; ++summed) bytes += payload.wire(all, summed).size();
  return bytes / (2 * hops);
}

// Everybody's floats at every rank, then folded in rank order.
void fold_directly(Exchange& exchange, std::span<float> values, FloatRing::Fold fold) {
  const auto world = static_cast<std::size_t>(exchange.size());
  std::vector<float> everybody(world * values.size());
  const auto part = [&](int rank) {
    return std::span(everybody).subspan(static_cast<std::size_t>(rank) * values.size(),
                                        values.size());
  };
  std::vector<Pending> pending;
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = (exchange.rank() + exchange.size() - distance) % exchange.size();
    const int to = (exchange.rank() + distance) % exchange.size();
    pending.push_back(
        exchange.transport().receive(from, Channel::data, std::as_writable_bytes(part(from))));
    pending.push_back(exchange.transport().send(to, Channel::data, std::as_bytes(values)));
  }
  for (auto& operation : pending) exchange.wait(*operation);
  exchange.timed(Stage::decode, [&] {
    std::copy(values.begin(), values.end(), part(exchange.rank()).begin());
    std::copy(part(0).begin(), part(0).end(), values.begin());
    for (int rank = 1; rank < exchange.size(); ++rank) fold(values, part(rank));
  });
}

}  // namespace

void ring_all_reduce(Exchange& exchange, RingPayload& payload, const RingOptions& options) {
  if (payload.units() == 0) return;
  exchange.payload_bytes += average_bytes(payload, exchange.size());
  if (exchange.size() == 1) {
    const UnitRange all{0, payload.units()};
    exchange.timed(Stage::encode, [&] { payload.encode(all); });
    exchange.timed(Stage::decode, [&] { payload.decode(all); });
    return;
  }
  Ring(exchange, payload, options).run();
}

void ring_sum(Exchange& exchange, std::span<float> values, float scale,
              const RingOptions& options) {
  if (values.empty()) return;
  if (exchange.size() == 1 || values.size_bytes() <= options.direct_bytes) {
    exchange.payload_bytes += values.size_bytes();
    if (exchange.size() > 1) fold_directly(exchange, values, kernels::add);
    if (scale != 1) exchange.timed(Stage::decode, [&] { kernels::scale(values, scale); });
    return;
  }
  FloatRing payload(values, exchange.size(), kernels::add, scale);
  ring_all_reduce(exchange, payload, for_floats(options, payload));
}

Nonfinite ring_sum_checked(Exchange& exchange, std::span<float> values, float scale,
                           const RingOptions& options) {
  if (exchange.size() == 1 || values.size_bytes() <= options.direct_bytes) {
    const std::size_t first = kernels::first_nonfinite(values);
    ring_sum(exchange, values, scale, options);
    return {.own = first, .left = values.size()};
  }
  CheckedFloatRing payload(values, exchange.size(), scale);
  ring_all_reduce(exchange, payload, for_floats(options, payload));
  return payload.found();
}

void ring_max(Exchange& exchange, std::span<float> values, const RingOptions& options) {
  if (values.empty()) return;
  if (exchange.size() == 1 || values.size_bytes() <= options.direct_bytes) {
    exchange.payload_bytes += values.size_bytes();
    if (exchange.size() > 1) fold_directly(exchange, values, kernels::maximum);
    return;
  }
  FloatRing payload(values, exchange.size(), kernels::maximum, 1);
  ring_all_reduce(exchange, payload, for_floats(options, payload));
}

void require_finite_sum(const Exchange& exchange, std::span<const float> sums,
                        std::string_view what) {
  const std::size_t bad = kernels::first_nonfinite(sums);
  if (bad == sums.size()) return;
  throw Error(
      ErrorCode::bad_frame,
      fmt::format("bucket {}, step {}: {} {} is {} after the sum over {} ranks; gradients "
                  "have overflowed or a rank sent nonsense",
                  exchange.id().bucket, exchange.id().step, what, bad, sums[bad], exchange.size()));
}

std::uint64_t ring_bytes_sent(int rank, int world, std::size_t units, std::size_t unit_bytes) {
  if (world == 1) return 0;
  const auto parts = static_cast<std::size_t>(world);
  const auto chunk = [&](int distance) {
    return cut({0, units}, parts, static_cast<std::size_t>(rank + distance) % parts).size();
  };
  return (2 * units - chunk(1) - chunk(2)) * unit_bytes;
}

}  // namespace thinreduce

#include "thinreduce/collective/float_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/collective/checked.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// Floats that are summed, or whose maximum is taken, in place.
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
  // Returns the factor for the sum of this rank's part and a partial sum over `summed` ranks.
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

// Also looks for NaN and Inf while the values are in the cache for the addition: in this rank's own
// values and, at the first hop, in those of its left neighbour, which sent them unchecked.
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

// One receive fewer in flight keeps incoming values in the cache until they are added. If a chunk
// has many segments, half as many of twice the size overlap just as well and cost half the
// messages.
RingOptions for_floats(RingOptions options, const FloatRing& payload) {
  constexpr std::size_t kMany = 16;
  options.receives_ahead = 2;
  if (payload.chunk_bytes() >= kMany * options.segment_bytes) options.segment_bytes *= 2;
  return options;
}

// Sends the floats of every rank to every other, then folds them in rank order.
void fold_directly(Exchange& exchange, std::span<float> values, FloatRing::Fold fold) {
  const auto world = static_cast<std::size_t>(exchange.size());
  std::vector<float> all(world * values.size());
  const auto part = [&](int rank) {
    return std::span(all).subspan(static_cast<std::size_t>(rank) * values.size(), values.size());
  };
  std::vector<CheckedReceive> receives;
  std::vector<CheckedSend> sends;
  const std::uint64_t hash = checksum(std::as_bytes(values));
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = (exchange.rank() + exchange.size() - distance) % exchange.size();
    const int to = (exchange.rank() + distance) % exchange.size();
    receives.emplace_back(exchange, from, std::as_writable_bytes(part(from)));
    sends.emplace_back(exchange, to, std::as_bytes(values), hash);
  }
  for (auto& receive : receives) receive.wait(exchange);
  for (auto& send : sends) send.wait(exchange);
  exchange.timed(Stage::decode, [&] {
    std::copy(values.begin(), values.end(), part(exchange.rank()).begin());
    std::copy(part(0).begin(), part(0).end(), values.begin());
    for (int rank = 1; rank < exchange.size(); ++rank) fold(values, part(rank));
  });
}

}  // namespace

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
                        std::string_view what, std::size_t first) {
  const std::size_t bad = kernels::first_nonfinite(sums);
  if (bad == sums.size()) return;
  throw Error(ErrorCode::bad_frame,
              fmt::format("bucket {}, step {}: {} {} is {} after the sum over {} ranks; a gradient "
                          "overflowed or a rank sent garbage",
                          exchange.id().bucket, exchange.id().step, what, first + bad, sums[bad],
                          exchange.size()));
}

void agree_on_maxima(Exchange& exchange, std::span<float> magnitudes, std::vector<float>& own,
                     std::string_view what) {
  own.assign(magnitudes.begin(), magnitudes.end());
  ring_max(exchange, magnitudes);
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    if (std::isfinite(magnitudes[i]) && magnitudes[i] >= own[i]) continue;
    throw Error(
        ErrorCode::bad_frame,
        fmt::format("rank {}, bucket {}, step {}: maximum {} of the {} magnitudes is {} over all "
                    "ranks and {} on this rank; a gradient overflowed or a rank sent garbage",
                    exchange.rank(), exchange.id().bucket, exchange.id().step, i, what,
                    magnitudes[i], own[i]));
  }
}

}  // namespace thinreduce

#include "thinreduce/collective/float_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

// Floats that are summed, or whose maximum is taken, in place.
class FloatSum : public SumCodec {
 public:
  using Fold = DirectExchange::Fold;

  FloatSum(std::span<float> values, int world, Fold how, float factor)
      : values_(values), world_(world), fold_(how), scale_(factor) {}

  [[nodiscard]] std::span<float> values() const { return values_; }
  [[nodiscard]] Fold fold() const { return fold_; }
  [[nodiscard]] float scale() const { return scale_; }

  [[nodiscard]] std::size_t units() const override { return values_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return sizeof(float); }
  [[nodiscard]] std::size_t chunk_bytes() const {
    return values_.size_bytes() / static_cast<std::size_t>(world_);
  }
  [[nodiscard]] std::span<std::byte> wire(Range range, int /*summed*/) override {
    return std::as_writable_bytes(own(range));
  }
  void encode(Range range) override {
    if (original_ != nullptr) original_->keep(range);
  }
  // Keeps what is overwritten from now on; null: does not.
  void keep_in(Original* original) { original_ = original; }
  void add(Range range, int summed, std::span<const std::byte> incoming, int /*peer*/) override {
    if (factor(summed) != 1) {
      kernels::add_scale(own(range), floats(incoming), factor(summed));
    } else {
      fold_(own(range), floats(incoming));
    }
  }
  void add_part(Range range, int summed, std::span<const std::byte> incoming, int peer) override {
    add(range, summed, incoming, peer);
  }
  void decode(Range /*range*/, int /*peer*/) override {}

 protected:
  [[nodiscard]] static std::span<const float> floats(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  // Returns the factor for the sum of this rank's part and a partial sum over `summed` ranks.
  [[nodiscard]] float factor(int summed) const { return summed + 1 == world_ ? scale_ : 1; }
  [[nodiscard]] std::span<float> own(Range range) const { return part(values_, range); }

 private:
  std::span<float> values_;
  int world_;
  Fold fold_;
  float scale_;
  Original* original_ = nullptr;
};

// Also looks for NaN and Inf in this rank's values, just before they are sent or added, and in the
// result.
class CheckedFloatSum final : public FloatSum {
 public:
  CheckedFloatSum(std::span<float> values, int world, float scale)
      : FloatSum(values, world, kernels::add, scale), found_{.own = values.size()} {}

  void encode(Range range) override {
    FloatSum::encode(range);
    const std::size_t at = kernels::first_nonfinite(own(range));
    if (at < range.size()) found_.own = std::min(found_.own, range.begin + at);
  }
  void decode(Range range, int /*peer*/) override {
    found_.in_result = found_.in_result || kernels::first_nonfinite(own(range)) < range.size();
  }

  [[nodiscard]] const Nonfinite& found() const { return found_; }

 private:
  Nonfinite found_;
};

// One receive fewer in flight keeps incoming values in the cache until they are added. If a chunk
// has many segments, half as many of twice the size overlap just as well and cost half the
// messages.
SumOptions for_floats(SumOptions options, const FloatSum& codec) {
  constexpr std::size_t kMany = 16;
  options.ring.receives_ahead = 2;
  if (codec.chunk_bytes() >= kMany * options.ring.segment_bytes) options.ring.segment_bytes *= 2;
  return options;
}

void reduce_floats(Exchange& exchange, FloatSum& codec, const SumOptions& options,
                   Original* original = nullptr) {
  const std::span<float> values = codec.values();
  if (values.empty()) return;
  const SumBy by =
      options.by.value_or(choose_sum(exchange, values.size_bytes(), /*may_be_direct=*/true));
  if (exchange.size() > 1 && by != SumBy::direct) {
    SumOptions chosen = for_floats(options, codec);
    chosen.by = by;
    codec.keep_in(original);  // a direct sum overwrites the values after its last message
    return all_reduce(exchange, codec, chosen);
  }
  const Range all{0, values.size()};
  exchange.timed(Stage::encode, [&] { codec.encode(all); });
  DirectExchange(exchange, values).finish(exchange, codec.fold());
  exchange.timed(Stage::decode, [&] {
    if (codec.scale() != 1) kernels::scale(values, codec.scale());
    codec.decode(all, exchange.rank());
  });
}

}  // namespace

DirectExchange::DirectExchange(Exchange& exchange, std::span<float> values) : values_(values) {
  exchange.payload_bytes += values.size_bytes();
  const auto world = static_cast<std::size_t>(exchange.size());
  if (world == 1) return;
  all_.resize(world * values.size());
  std::optional<std::uint64_t> hash;
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = (exchange.rank() + exchange.size() - distance) % exchange.size();
    const int to = (exchange.rank() + distance) % exchange.size();
    receives_.emplace_back(exchange, from,
                           std::as_writable_bytes(std::span(all_).subspan(
                               static_cast<std::size_t>(from) * values.size(), values.size())));
    sends_.emplace_back(exchange, to, std::as_bytes(values), hash);
  }
}

void DirectExchange::finish(Exchange& exchange, Fold fold) {
  if (exchange.size() == 1) return;
  for (auto& receive : receives_) receive.wait(exchange);
  for (auto& send : sends_) send.wait(exchange);
  const auto world = static_cast<std::size_t>(exchange.size());
  const auto from_rank = [&](std::size_t rank) {
    return std::span(all_).subspan(rank * values_.size(), values_.size());
  };
  exchange.timed(Stage::decode, [&] {
    std::ranges::copy(values_, from_rank(static_cast<std::size_t>(exchange.rank())).begin());
    for (std::size_t chunk = 0; chunk < world; ++chunk) {
      const Range range = cut({0, values_.size()}, world, chunk);
      const auto folded = part(values_, range);
      std::ranges::copy(part(from_rank(chunk), range), folded.begin());
      for (std::size_t distance = 1; distance < world; ++distance) {
        fold(folded, part(from_rank((chunk + distance) % world), range));
      }
    }
  });
}

void sum_floats(Exchange& exchange, std::span<float> values, float scale,
                const SumOptions& options) {
  FloatSum codec(values, exchange.size(), kernels::add, scale);
  reduce_floats(exchange, codec, options);
}

void sum_bucket(Exchange& exchange, std::span<float> values, float scale) {
  FloatSum codec(values, exchange.size(), kernels::add, scale);
  reduce_floats(exchange, codec, {}, exchange.keep_in_parts());
}

Nonfinite sum_floats_checked(Exchange& exchange, std::span<float> values, float scale,
                             const SumOptions& options) {
  CheckedFloatSum codec(values, exchange.size(), scale);
  reduce_floats(exchange, codec, options, exchange.keep_in_parts());
  return codec.found();
}

void max_floats(Exchange& exchange, std::span<float> values, const SumOptions& options) {
  FloatSum codec(values, exchange.size(), kernels::maximum, 1);
  reduce_floats(exchange, codec, options);
}

EarlySum::EarlySum(Exchange& exchange, std::span<float> values, float scale)
    : values_(values), scale_(scale) {
  if (values.empty()) return;
  if (choose_sum(exchange, values.size_bytes(), true) != SumBy::direct) {
    sum_floats(exchange, values, scale);
    return;
  }
  direct_.emplace(exchange, values);
}

void EarlySum::finish(Exchange& exchange) {
  if (!direct_) return;
  direct_->finish(exchange, kernels::add);
  exchange.timed(Stage::decode, [&] { kernels::scale(values_, scale_); });
}

void require_finite_sum(const Exchange& exchange, std::span<const float> sums,
                        std::string_view what, std::size_t first) {
  const std::size_t bad = kernels::first_nonfinite(sums);
  if (bad == sums.size()) return;
  throw Error::overflow(fmt::format(
      "bucket {}, step {}: {} {} is {} after the sum over {} ranks; a gradient overflowed or a "
      "rank sent corrupt data",
      exchange.id().bucket, exchange.id().step, what, first + bad, sums[bad], exchange.size()));
}

void require_maxima(const Exchange& exchange, std::span<const float> maxima,
                    std::span<const float> own, std::string_view what) {
  for (std::size_t i = 0; i < maxima.size(); ++i) {
    if (std::isfinite(maxima[i]) && maxima[i] >= own[i]) continue;
    throw Error::overflow(fmt::format(
        "rank {}, bucket {}, step {}: maximum {} of the {} magnitudes is {} over all ranks and {} "
        "on this rank; a gradient overflowed or a rank sent corrupt data",
        exchange.rank(), exchange.id().bucket, exchange.id().step, i, what, maxima[i], own[i]));
  }
}

void agree_on_maxima(Exchange& exchange, std::span<float> magnitudes, std::vector<float>& own,
                     std::string_view what) {
  own.assign(magnitudes.begin(), magnitudes.end());
  max_floats(exchange, magnitudes);
  require_maxima(exchange, magnitudes, own, what);
}

}  // namespace thinreduce

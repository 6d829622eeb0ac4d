#include "thinreduce/methods/sketch/quantum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

constexpr int kMaxSum = std::numeric_limits<std::int16_t>::max();

// One unit is one multiple.
class Multiples final : public SumCodec {
 public:
  Multiples(const Exchange& exchange, const SharedQuantum& quantum, const MultiplesSum& sum)
      : quantum_(quantum), sum_(sum), world_(exchange.size()), workers_(exchange.workers) {}

  [[nodiscard]] std::size_t units() const override { return sum_.room.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return sizeof(std::int16_t); }
  [[nodiscard]] std::span<std::byte> wire(Range range, int /*summed*/) override {
    return std::as_writable_bytes(part(sum_.room, range));
  }
  void encode(Range range) override {
    std::ranges::copy(part(sum_.own, range), part(sum_.room, range).begin());
  }
  void add(Range range, int summed, std::span<const std::byte> incoming, int peer) override {
    add_checked(range, incoming, summed, peer);
  }
  void add_part(Range range, int /*summed*/, std::span<const std::byte> bytes, int peer) override {
    add_checked(range, bytes, 1, peer);
  }
  void decode(Range range, int peer) override {
    for_floats(workers_, range.size(), [&](std::size_t first, std::size_t count) {
      const Range run{range.begin + first, range.begin + first + count};
      quantum_.check(part(sum_.room, run), world_, peer);
      quantum_.restore(part(sum_.room, run), part(sum_.sums, run));
    });
  }

 private:
  // Adds multiples that `peer` sent, summed over `ranks` ranks.
  void add_checked(Range range, std::span<const std::byte> bytes, int ranks, int peer) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    ensure(address % alignof(std::int16_t) == 0 && bytes.size() == range.size() * unit_bytes(),
           "incoming multiples must be whole and at an even address", address, bytes.size(),
           range.size());
    const std::span in(reinterpret_cast<const std::int16_t*>(bytes.data()), range.size());
    quantum_.check(in, ranks, peer);
    const auto out = part(sum_.room, range);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int16_t>(out[i] + in[i]);
  }

  const SharedQuantum& quantum_;
  MultiplesSum sum_;
  int world_;
  Workers workers_;
};

}  // namespace

float largest_finite(std::span<const float> values) {
  if (kernels::first_nonfinite(values) < values.size())
    return std::numeric_limits<float>::infinity();
  return kernels::largest_magnitude(values);
}

SharedQuantum::SharedQuantum(float largest, int world) : limit_(kMaxSum / world) {
  ensure(world >= 1 && world <= kMaxRanks, "too many ranks to share 16 bits", world);
  ensure(std::isfinite(largest) && largest >= 0, "the largest magnitude must be finite", largest);
  if (largest == 0) return;
  // The double quotient is a power of two only if the exact one is: both operands have 24 bits.
  int exponent = 0;
  if (std::frexp(static_cast<double>(largest) / limit_, &exponent) == 0.5) --exponent;
  constexpr int kMinExponent = std::numeric_limits<float>::min_exponent - 24;  // of a subnormal
  quantum_ = static_cast<float>(std::ldexp(1.0, std::max(exponent, kMinExponent)));
}

QuantumAgreement::QuantumAgreement(Exchange& exchange, float largest)
    : own_(largest), largest_(own_), sent_(exchange, std::span(&largest_, 1)) {}

SharedQuantum QuantumAgreement::conclude(Exchange& exchange) {
  sent_.finish(exchange, kernels::maximum);
  const float largest = largest_;
  require_maxima(exchange, std::span(&largest_, 1), std::span(&own_, 1), "value");
  const SharedQuantum agreed(largest, exchange.size());
  // Near the largest float, rounding up overflows.
  std::int16_t multiple = 0;
  float restored = 0;
  agreed.round(std::span(&largest, 1), std::span(&multiple, 1));
  agreed.restore(std::span(&multiple, 1), std::span(&restored, 1));
  if (!std::isfinite(restored)) {
    throw Error::overflow(
        fmt::format("bucket {}, step {}: the largest magnitude over all ranks is {}, which exceeds "
                    "float32 when it is rounded up to {} * {}",
                    exchange.id().bucket, exchange.id().step, largest, multiple, agreed.quantum()));
  }
  return agreed;
}

void SharedQuantum::round(std::span<const float> values, std::span<std::int16_t> multiples) const {
  // In double, where the inverse cannot overflow and adding a half is exact.
  const double inverse = 1.0 / static_cast<double>(quantum_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = static_cast<double>(values[i]) * inverse;
    multiples[i] = static_cast<std::int16_t>(static_cast<int>(exact + std::copysign(0.5, exact)));
  }
}

void SharedQuantum::restore(std::span<const std::int16_t> multiples,
                            std::span<float> values) const {
  for (std::size_t i = 0; i < multiples.size(); ++i) {
    values[i] = static_cast<float>(multiples[i]) * quantum_;
  }
}

void SharedQuantum::check(std::span<const std::int16_t> sums, int summed, int peer) const {
  int largest = 0;
  for (const int sum : sums) largest = std::max(largest, std::abs(sum));
  if (largest <= summed * limit_) return;
  throw Error(
      ErrorCode::bad_frame,
      fmt::format("rank {} sent a sum of {} multiples of the step size; over {} ranks it must be "
                  "at most {}",
                  peer, largest, summed, summed * limit_));
}

std::unique_ptr<SumCodec> make_multiples(const Exchange& exchange, const SharedQuantum& quantum,
                                         const MultiplesSum& sum) {
  return std::make_unique<Multiples>(exchange, quantum, sum);
}

void sum_multiples(Exchange& exchange, const SharedQuantum& quantum, const MultiplesSum& sum,
                   const SumOptions& options) {
  Multiples multiples(exchange, quantum, sum);
  all_reduce(exchange, multiples, options);
}

}  // namespace thinreduce

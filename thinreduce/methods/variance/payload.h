// The payload of variance-based compression: which elements of each tensor, and their values in
// four bits, in one bit or whole. docs/methods/variance.md specifies the bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce {

// Four bits: a sign and how many powers of two below the tensor's largest. `exponent` is the biased
// exponent of 2^E, the largest power of two that is not above the largest magnitude.
inline constexpr std::uint8_t kNotSent = 0xFF;
[[nodiscard]] inline std::uint8_t nibble_of(float value, std::uint32_t exponent) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Half a power of two more carries into the exponent when the next power is the nearer one.
  const std::uint32_t rounded = ((bits & 0x7FFFFFFF) + 0x00400000) >> 23U;
  const std::uint32_t power = rounded < exponent ? rounded : exponent;
  if (power == 0 || exponent - power > 7) return kNotSent;
  return static_cast<std::uint8_t>((bits >> 31U) << 3U | (exponent - power));
}
// For a nibble whose distance is below the exponent.
[[nodiscard]] inline float nibble_value(std::uint32_t nibble, std::uint32_t exponent) {
  return std::bit_cast<float>((nibble >> 3U) << 31U | (exponent - (nibble & 7U)) << 23U);
}
[[nodiscard]] inline std::uint32_t exponent_of(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF) >> 23U;
}

// Larger magnitudes than 2^100 are refused, so that whatever is accepted makes finite means. A rank
// whose sums overflow tells the others by such an exponent.
inline constexpr std::uint32_t kMostExponent = 127 + 100;

struct VarianceFormat {
  enum class Values { nibble, sign, whole };
  enum class Places { words, compact };
  Values values = Values::nibble;
  Places places = Places::compact;
  float tau = 0;  // Values::sign: what a sign stands for
};

// A compressed tensor's place in the bucket.
struct VarianceTensor {
  std::size_t offset = 0;
  std::size_t elements = 0;
};
// In the paper's words an index has 28 bits, a value the other four.
inline constexpr std::uint32_t kWordIndexBits = 28;
inline constexpr std::uint32_t kWordIndexMask = (1U << kWordIndexBits) - 1;
inline constexpr std::size_t kMostWordElements = std::size_t{1} << kWordIndexBits;
// At the start of a payload, for each tensor: count, exponent and low bits.
inline constexpr std::size_t kVariancePartBytes = 8;
// What the values beside compact places take.
[[nodiscard]] std::size_t compact_value_bytes(VarianceFormat::Values values, std::size_t count);
// Low bits of a gap's Rice code: the gaps' mean is between 2^low and 2^(low + 1).
[[nodiscard]] unsigned gap_low_bits(std::size_t elements, std::size_t count);

// What a rank sends: the tensors' elements one after the other, indices ascending.
struct VarianceSent {
  struct Part {
    std::uint32_t count = 0;
    std::uint32_t exponent = 0;  // 0 when nothing is sent, and where values have no common one
  };
  std::vector<Part> parts;             // one a tensor
  std::vector<std::uint32_t> indices;  // in the bucket
  std::vector<std::uint8_t> codes;     // a nibble, or only its sign bit
  std::vector<float> values;           // Values::whole

  void clear();
};

class VariancePayload {
 public:
  VariancePayload(VarianceFormat format, std::vector<VarianceTensor> tensors);

  // The longest that makes sense.
  [[nodiscard]] std::size_t limit() const;
  // Replaces `payload`; nothing sent makes an empty one.
  void write(const VarianceSent& sent, std::vector<std::byte>& payload) const;
  // Replaces the compressed tensors of `sum` by the sum over the ranks' payloads, added in rank
  // order, of share * value. Throws Error{bad_frame} that names the rank when anything in a payload
  // is wrong; part of the values may then have been added.
  void add_up(std::span<const std::span<const std::byte>> payloads, float share,
              std::span<float> sum) const;

 private:
  VarianceFormat format_;
  std::vector<VarianceTensor> tensors_;
};

}  // namespace thinreduce

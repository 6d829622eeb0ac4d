// The payload of variance-based compression: which elements of each tensor, and their values in
// eight bits, in four, in one or whole. docs/methods/variance.md specifies the bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/bucket.h"

namespace thinreduce {

// A value in few bits: its sign, and how far it is below the largest that there is in its tensor,
// on a scale with 2^kFraction steps to every power of two. `exponent` is the biased exponent of
// 2^E, the largest power of two that is not above the largest magnitude.
template <unsigned kFractionBits, unsigned kDistanceBits>
struct PowerCode {
  static constexpr unsigned kBits = kDistanceBits + 1;
  static constexpr std::uint32_t kSign = 1U << kDistanceBits;

  // kNotSent for what is too small; all codes are below 2^kBits.
  static constexpr std::uint32_t kNotSent = 1U << kBits;
  [[nodiscard]] static std::uint32_t of(float value, std::uint32_t exponent) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // Half a step more carries into the next one when that is nearer.
    const std::uint32_t rounded = ((bits & 0x7FFFFFFF) + (1U << (kShift - 1))) >> kShift;
    const std::uint32_t step = rounded < top(exponent) ? rounded : top(exponent);
    const std::uint32_t distance = top(exponent) - step;
    if (step < kLeast || distance >= kSign) return kNotSent;
    return (bits >> 31U) << kDistanceBits | distance;
  }
  // Some codes would be below the normal numbers.
  [[nodiscard]] static bool valid(std::uint32_t code, std::uint32_t exponent) {
    return top(exponent) >= (code & (kSign - 1)) + kLeast;
  }
  [[nodiscard]] static bool all_valid(std::uint32_t exponent) { return valid(kSign - 1, exponent); }
  // Of a valid code.
  [[nodiscard]] static float value(std::uint32_t code, std::uint32_t exponent) {
    return std::bit_cast<float>((code >> kDistanceBits) << 31U |
                                (top(exponent) - (code & (kSign - 1))) << kShift);
  }

 private:
  static constexpr unsigned kShift = 23 - kFractionBits;
  static constexpr std::uint32_t kLeast = 1U << kFractionBits;  // 2^-126
  // What is larger is cut.
  [[nodiscard]] static std::uint32_t top(std::uint32_t exponent) {
    return (exponent << kFractionBits) + kLeast - 1;
  }
};
using NibbleCode = PowerCode<0, 3>;  // the paper's: powers of two down to 2^(E-7), off by up to 1/3
using ByteCode = PowerCode<3, 7>;    // eighths of 2^E down to 2^(E-15), off by up to 1/16

[[nodiscard]] inline std::uint32_t exponent_of(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF) >> 23U;
}

// Larger magnitudes than 2^100 are refused, so that whatever is accepted makes finite means. A rank
// whose sums overflow tells the others by such an exponent.
inline constexpr std::uint32_t kMostExponent = 127 + 100;

struct VarianceFormat {
  enum class Values { byte, nibble, sign, whole };
  enum class Places { words, compact };
  Values values = Values::byte;
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
// What the values take that are not in the words themselves.
[[nodiscard]] std::size_t value_bytes(const VarianceFormat& format, std::size_t count);
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
  std::vector<std::uint8_t> codes;     // a byte, a nibble, or only its sign bit
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

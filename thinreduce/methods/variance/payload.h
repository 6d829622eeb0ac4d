// The payload of variance-based compression: indices of the sent elements of each tensor, and their
// values as four bits, one bit or a float. docs/methods/variance.md specifies the bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce {

// A nibble is a sign and the number of powers of two below the tensor's largest. `exponent` is the
// biased exponent of 2^E, the largest power of two not above the largest magnitude.
inline constexpr std::uint8_t kNotSent = 0xFF;
[[nodiscard]] inline std::uint8_t nibble_of(float value, std::uint32_t exponent) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Adding half a power of two carries into the exponent if the next power is nearer.
  const std::uint32_t rounded = ((bits & 0x7FFFFFFF) + 0x00400000) >> 23U;
  const std::uint32_t power = rounded < exponent ? rounded : exponent;
  if (power == 0 || exponent - power > 7) return kNotSent;
  return static_cast<std::uint8_t>((bits >> 31U) << 3U | (exponent - power));
}
// Returns the value of a nibble; its distance (low 3 bits) must be below the exponent.
[[nodiscard]] inline float nibble_value(std::uint32_t nibble, std::uint32_t exponent) {
  return std::bit_cast<float>((nibble >> 3U) << 31U | (exponent - (nibble & 7U)) << 23U);
}
[[nodiscard]] inline std::uint32_t exponent_of(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF) >> 23U;
}

// Magnitudes above 2^100 are refused, so that accepted payloads always give finite means. A rank
// whose sums overflow tells the others by a larger exponent.
inline constexpr std::uint32_t kMaxExponent = 127 + 100;

struct VarianceFormat {
  enum class Values { nibble, sign, whole };
  enum class Index { words, compact };
  Values values = Values::nibble;
  Index index = Index::compact;
  float tau = 0;  // Values::sign: magnitude that a sign stands for
};

// A compressed tensor's elements in the bucket.
struct VarianceTensor {
  std::size_t offset = 0;
  std::size_t elements = 0;
};
// Index::words: the paper's 32-bit words of 28 index bits and 4 value bits.
inline constexpr std::uint32_t kWordIndexBits = 28;
inline constexpr std::uint32_t kWordIndexMask = (1U << kWordIndexBits) - 1;
inline constexpr std::size_t kMaxWordElements = std::size_t{1} << kWordIndexBits;
// Bytes per tensor at the start of a payload: count, exponent and low bits.
inline constexpr std::size_t kVariancePartBytes = 8;
// Returns the bytes of `count` values with Index::compact.
[[nodiscard]] std::size_t compact_value_bytes(VarianceFormat::Values values, std::size_t count);
// Returns the low bits of the gaps' Rice code: the mean gap is between 2^low and 2^(low + 1).
[[nodiscard]] unsigned gap_low_bits(std::size_t elements, std::size_t count);

// The elements that a rank sends, tensor by tensor, indices ascending.
struct VarianceSent {
  struct Part {
    std::uint32_t count = 0;
    std::uint32_t exponent = 0;  // 0 if nothing is sent or values have no common exponent
  };
  std::vector<Part> parts;             // one per tensor
  std::vector<std::uint32_t> indices;  // into the bucket
  std::vector<std::uint8_t> codes;     // a nibble, or only its sign bit
  std::vector<float> values;           // Values::whole

  // An ascending list of sums.
  struct Sums {
    std::span<const std::uint32_t> indices;
    std::span<const float> values;
    std::size_t first = 0;  // the index that counts as 0
  };
  // Replaces the content by sums inside the tensors. Values that are too small for their tensor are
  // left out.
  void fill(const VarianceFormat& format, std::span<const VarianceTensor> tensors,
            const Sums& sums);
  void clear();

 private:
  void append(const VarianceFormat& format, const Sums& sums);
};

class VariancePayload {
 public:
  VariancePayload(VarianceFormat format, std::vector<VarianceTensor> tensors);

  // Returns the maximum size of a payload in bytes.
  [[nodiscard]] std::size_t limit() const;
  // Replaces `payload`; it becomes empty if nothing is sent.
  void write(const VarianceSent& sent, std::vector<std::byte>& payload) const;
  // Replaces the compressed tensors of `sum` by the sum of share * value over the payloads, added
  // in rank order. Throws Error{bad_frame} that names the rank if a payload is invalid; some values
  // may have been added by then.
  void add_up(std::span<const std::span<const std::byte>> payloads, float share,
              std::span<float> sum) const;
  // Adds the values of one payload to the sum and returns their number. Throws like add_up().
  std::size_t add(std::span<const std::byte> payload, int rank, std::span<float> sum) const;

 private:
  VarianceFormat format_;
  std::vector<VarianceTensor> tensors_;
};

}  // namespace thinreduce

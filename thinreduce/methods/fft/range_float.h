// The range float: a float of N bits whose codes all lie where the values are.
//
// A float32's bits, read as an integer, ascend with its magnitude; cut to m mantissa bits they are
// the *steps* of a ladder, 2^m to every octave. A range float of N bits has 2^N codes: 0 for zero,
// 1 to `positive` for the steps from `base` upwards, the rest for the same steps with a minus sign.
// `base` is as low as the number of codes allows once the ladder reaches up to the largest value on
// either side, so no code is spent on magnitudes that do not occur: not on an exponent range, not
// on the shorter side. docs/range-float.md has tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// The least and the largest of some values; zero is always inside.
struct ValueRange {
  float least = 0;
  float most = 0;
};

inline constexpr int kLeastRangeBits = 4;
inline constexpr int kMostRangeBits = 16;

struct RangeFloat {
  int bits = 10;               // N: codes are below 2^N
  int mantissa = 5;            // m
  std::uint32_t base = 0;      // the lowest step: eps is the float of bits base << (23 - m)
  std::uint32_t positive = 0;  // codes of positive values
  std::uint32_t negative = 0;  // codes of negative values

  // For values in `range` (finite). 4 <= bits <= 16, 0 <= mantissa <= 15.
  [[nodiscard]] static RangeFloat covering(ValueRange range, int bits, int mantissa);
  // Of all mantissas, the one with the least squared error on `sample`.
  [[nodiscard]] static RangeFloat fitting(ValueRange range, int bits,
                                          std::span<const float> sample);
  // Whether every code of this format is one finite value; for formats that came from elsewhere.
  [[nodiscard]] bool valid() const;

  [[nodiscard]] int shift() const { return 23 - mantissa; }
  // Codes are 0 to last_code().
  [[nodiscard]] std::uint32_t last_code() const { return positive + negative; }
  // The smallest magnitude but zero.
  [[nodiscard]] float eps() const;

  // The largest magnitude.
  [[nodiscard]] float largest() const;

  // To the nearest; beyond the range to its end; below eps/2 to zero.
  [[nodiscard]] std::uint16_t encode(float value) const;
  // `code` is at most last_code().
  [[nodiscard]] float decode(std::uint16_t code) const;

  bool operator==(const RangeFloat&) const = default;
};

// All values to codes and back, and their range. Finite values only.
void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes);
void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values);
[[nodiscard]] ValueRange range_of(std::span<const float> values);

// What defines the results above.
namespace reference {
void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes);
void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values);
[[nodiscard]] ValueRange range_of(std::span<const float> values);
}  // namespace reference

}  // namespace thinreduce::kernels

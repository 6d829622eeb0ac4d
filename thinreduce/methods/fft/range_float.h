// The range float: a float of N bits whose codes all lie where the values are.
//
// A float32's bits, read as an integer, ascend with its magnitude; cut to m mantissa bits they are
// the *rungs* of a ladder, 2^m per octave. A range float of N bits has up to 2^N codes: 0 for zero,
// 1 to `positive` for the rungs from `base` upwards, the rest for the same rungs with a minus sign.
// `base` is as low as the number of codes allows with both ladders reaching the largest value on
// their side, so no code is spent on magnitudes that do not occur. docs/range-float.md has tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// Minimum and maximum of some values; always includes zero.
struct ValueRange {
  float min = 0;
  float max = 0;
};

inline constexpr int kMinRangeBits = 4;
inline constexpr int kMaxRangeBits = 16;

struct RangeFloat {
  int bits = 10;               // N: codes are below 2^N
  int mantissa = 5;            // m
  std::uint32_t base = 0;      // the lowest rung: eps is the float with the bits base << (23 - m)
  std::uint32_t positive = 0;  // number of codes for positive values
  std::uint32_t negative = 0;  // number of codes for negative values

  // Returns a format for values in `range`, which must be finite. 4 <= bits <= 16,
  // 0 <= mantissa <= 15.
  [[nodiscard]] static RangeFloat covering(ValueRange range, int bits, int mantissa);
  // Returns the format whose mantissa has the smallest squared error on `sample`.
  [[nodiscard]] static RangeFloat fitting(ValueRange range, int bits,
                                          std::span<const float> sample);
  // Returns whether every code stands for one finite value; for untrusted formats.
  [[nodiscard]] bool valid() const;

  [[nodiscard]] int shift() const { return 23 - mantissa; }
  // Returns the largest code; the smallest is 0.
  [[nodiscard]] std::uint32_t last_code() const { return positive + negative; }
  // Returns the smallest magnitude above zero.
  [[nodiscard]] float eps() const;

  // Returns the largest magnitude.
  [[nodiscard]] float largest() const;

  // Rounds to the nearest code; values beyond the range to its end, values below eps/2 to zero.
  [[nodiscard]] std::uint16_t encode(float value) const;
  // `code` must be at most last_code().
  [[nodiscard]] float decode(std::uint16_t code) const;

  bool operator==(const RangeFloat&) const = default;
};

// Convert all values to codes and back, and find their range. Values must be finite.
void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes);
void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values);
[[nodiscard]] ValueRange range_of(std::span<const float> values);

// The scalar definition of the functions above.
namespace reference {
void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes);
void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values);
[[nodiscard]] ValueRange range_of(std::span<const float> values);
}  // namespace reference

}  // namespace thinreduce::kernels

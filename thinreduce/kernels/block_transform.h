// Orthonormal Fourier and cosine transforms of blocks, 16 blocks side by side.
//
// A block of n floats (n a power of two, 64 to 16384) becomes n coefficients in an orthonormal
// basis, so the sum of squares is preserved, and an error in the spectrum costs the same in the
// block. In terms of the usual transform X[k] = sum of x[j]*exp(-2*pi*i*j*k/n), Transform::fft
// gives, as coefficients 0 to n-1,
//
//   X[0]/sqrt(n), X[n/2]/sqrt(n), then Re X[k]*sqrt(2/n), Im X[k]*sqrt(2/n) for k = 1 to n/2-1:
//
// bins 1 to n/2-1 also stand for their mirror images, so they weigh twice as much as DC and
// Nyquist. Transform::dct gives the coefficients of the DCT-II, lowest frequency first.
//
// Coefficients 2k and 2k+1 are a *pair*, which is kept or dropped as a whole (pairs.h).
//
// Each lane of a vector holds another block, so every block goes through the same operations in the
// same order whatever the vector width: the bits are the same on every target. Spectra stay in that
// interleaved order, with coefficient q of block b at [q * 16 + b], until they are transformed
// back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinreduce::kernels {

inline constexpr std::size_t kBlockLanes = 16;
inline constexpr std::size_t kMinBlock = 64;
inline constexpr std::size_t kMaxBlock = 16384;

enum class Transform { fft, dct };

// Tables for transforms of one length and kind.
struct TransformTables {
  TransformTables(std::size_t block_length, Transform kind);

  std::size_t length;  // n
  Transform transform;
  // sqrt(1/n) and sqrt(1/(2n)): see `rotations`.
  float scale_ends = 0;
  float scale_half = 0;
  // Per complex pass of size m = n/2, n/8, ...: exp(-2*pi*i*j/m) to the powers 1, 2, 3 as (cos,
  // sin), for j below m/4. The pass of size m starts at passes[log2(m)].
  std::vector<float> twiddles;
  std::vector<std::size_t> passes;
  // exp(-2*pi*i*k/n) * sqrt(1/(2n)), (cos, sin) for k up to n/4.
  std::vector<float> rotations;
  // exp(-pi*i*k/(2n)), (cos, sin) for k up to n/2; cosine transform only.
  std::vector<float> quarter_turns;
  // The index at which the complex passes leave frequency k of n/2.
  std::vector<std::uint32_t> places;
  // The index in the input of the complex passes of float i of a block.
  std::vector<std::uint32_t> order;
};

// Transform 16 consecutive blocks of n floats to their spectra, and back, multiplied by `scale` at
// the end. All spans have 16 * n floats; `scratch` must be aligned to 64 bytes.
void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch);
void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> scratch);

// The scalar definition of the functions above.
namespace reference {
void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch);
void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> scratch);
}  // namespace reference

}  // namespace thinreduce::kernels

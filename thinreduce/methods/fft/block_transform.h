// Orthonormal Fourier and cosine transforms of blocks, 16 blocks side by side.
//
// A block of n floats (n a power of two, 64 to 16384) becomes n coefficients in an orthonormal
// basis, so the squares of the coefficients add up to the squares of the floats, and what an error
// costs in the spectrum it costs in the block. In terms of the usual transform X[k] = sum of
// x[j]*exp(-2*pi*i*j*k/n), Transform::fft gives, as coefficients 0 to n-1,
//
//   X[0]/sqrt(n), X[n/2]/sqrt(n), then Re X[k]*sqrt(2/n), Im X[k]*sqrt(2/n) for k = 1 to n/2-1:
//
// the bins from 1 to n/2-1 stand for their mirror images too, so they weigh twice as much as
// DC and Nyquist. Transform::dct gives the coefficients of the DCT-II, lowest frequency first.
//
// A pair of coefficients 2k, 2k+1 is one *unit*: it is kept or dropped as a whole.
//
// Each lane of a vector holds another block, so all lanes do the same sums in the same order
// however many lanes there are: the bits are the same on every target, without a thought given to
// it. Spectra stay in that order, with coefficient q of block b at [q * 16 + b], and leave it only
// when they become blocks again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinreduce::kernels {

inline constexpr std::size_t kBlockLanes = 16;
inline constexpr std::size_t kLeastBlock = 64;
inline constexpr std::size_t kLargestBlock = 16384;

enum class Transform { fft, dct };

// What a transform of one length needs to know; made once.
struct TransformTables {
  TransformTables(std::size_t block_length, Transform kind);

  std::size_t length;  // n
  Transform transform;
  // sqrt(1/n) and sqrt(1/(2n)): see `rotations`.
  float scale_ends = 0;
  float scale_half = 0;
  // For each complex pass of size m = n/2, n/8, ... : exp(-2*pi*i*j/m) to the powers 1, 2, 3 as
  // (cos, sin) pairs, for j below m/4; the pass of size m starts at passes[log2(m)].
  std::vector<float> twiddles;
  std::vector<std::size_t> passes;
  // exp(-2*pi*i*k/n) * sqrt(1/(2n)), (cos, sin) for k up to n/4.
  std::vector<float> rotations;
  // exp(-pi*i*k/(2n)), (cos, sin) for k up to n/2; cosine transform only.
  std::vector<float> quarter_turns;
  // Where the complex passes leave frequency k of n/2.
  std::vector<std::uint32_t> places;
  // Which place of the complex passes float i of a block goes to.
  std::vector<std::uint32_t> order;
};

// 16 blocks of n floats, one after another, to their spectra and back. `scratch` is as long as the
// others: 16 * n.
void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch);
void inverse(const TransformTables& tables, std::span<const float> spectra, std::span<float> blocks,
             std::span<float> scratch);

// What defines the results above.
namespace reference {
void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch);
void inverse(const TransformTables& tables, std::span<const float> spectra, std::span<float> blocks,
             std::span<float> scratch);
}  // namespace reference

}  // namespace thinreduce::kernels

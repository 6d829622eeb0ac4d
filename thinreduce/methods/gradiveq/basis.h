// The linear algebra of GradiVeQ: the second moments of a layer's slices, the directions in which
// the slices vary most, and the basis that projects onto the first of these directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {

// Returns what is wrong with U, `size` columns, row-major: one whose norm is not 1 would let the
// residual grow instead of shrink. Empty if nothing is.
[[nodiscard]] std::string wrong_column(std::span<const float> columns, std::size_t size);

// U: `slice` x `size` floats with orthonormal columns. Slices and projections are dense, one after
// another.
class Basis {
 public:
  Basis() = default;
  // `columns` is U, row-major. Equals Basis() if `size` is 0.
  Basis(std::span<const float> columns, std::size_t slice, std::size_t size);

  [[nodiscard]] std::size_t slice() const { return slice_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  // Multiplies each slice by U^T, and each projection by U.
  void project(std::span<const float> slices, std::span<float> projections,
               kernels::Ahead ahead = {}) const;
  void rebuild(std::span<const float> projections, std::span<float> slices,
               kernels::Ahead ahead = {}) const;

  // Returns U, row-major.
  [[nodiscard]] std::vector<float> columns() const;
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  std::size_t slice_ = 0;
  std::size_t size_ = 0;
  std::vector<float> down_;  // U, rows padded
  std::vector<float> up_;    // U^T, rows padded
  std::uint64_t hash_ = 0;
};

// Orthonormal directions in descending order of the energy (sum of squares) of the samples along
// them. Directions without energy may be missing.
struct Spectrum {
  std::size_t slice = 0;
  std::vector<double> energies;
  std::vector<double> directions;  // column-major, `slice` values per direction

  [[nodiscard]] double total() const;
  // Returns the min number of directions, at least 1, that hold `fraction` of the energy.
  [[nodiscard]] std::size_t size_for(double fraction) const;
  // Returns the first `size` directions as columns of U, row-major. Where the samples determine
  // fewer, arbitrary orthonormal columns follow.
  [[nodiscard]] std::vector<float> columns(std::size_t size) const;
};

// Returns the directions of samples: from their K x K matrix of second moments, or from n < K of
// them, one after another, by way of their n x n inner products.
[[nodiscard]] Spectrum spectrum_of(std::span<const float> values, std::size_t slice,
                                   bool are_moments);

// The second moments of sampled slices: the samples themselves while there are fewer than K, then
// their K x K matrix. Never holds more than K*K floats.
//
// Longer samples than kMaxLength are shortened to it, so that neither one spike nor gradients that
// are all huge overflow the moments: only the directions of samples count then.
class SliceStatistics {
 public:
  static constexpr float kMaxLength = 1e15F;

  SliceStatistics() = default;
  explicit SliceStatistics(std::size_t slice) : slice_(slice) {}

  void add(std::span<const float> samples);
  void add(const SliceStatistics& other);
  // Scales the weight of the samples so far down to that of `max` new samples.
  void forget(double max);
  // Makes room for as many samples as it may hold, which a copy does not have.
  void reserve() { values_.reserve(slice_ * slice_); }

  [[nodiscard]] double weight() const { return weight_; }
  [[nodiscard]] Spectrum spectrum() const;
  // Return the energy of all samples, and its part within a basis.
  [[nodiscard]] double energy() const;
  [[nodiscard]] double energy_within(const Basis& basis) const;

  void state(Archive& archive);

 private:
  void fold();
  // Adds samples that are not too long.
  void take(std::span<const float> samples);
  void add_moments(std::span<const float> samples);

  std::size_t slice_ = 0;
  double weight_ = 0;    // number of samples; less after forget()
  bool folded_ = false;  // values_ is the K x K matrix
  std::vector<float> values_;
  std::vector<float> scratch_;
};

}  // namespace thinreduce

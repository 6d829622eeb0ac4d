// The linear algebra of GradiVeQ: what is known about a layer's slices, the directions in which
// they vary most, and the basis that projects onto these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {

class Archive;

// U: `slice` x `rank` floats with orthonormal columns, in the two forms that the kernels want.
class Basis {
 public:
  Basis() = default;
  // `columns` is U, row-major without padding.
  Basis(std::span<const float> columns, std::size_t slice, std::size_t rank);

  [[nodiscard]] std::size_t slice() const { return slice_; }
  [[nodiscard]] std::size_t rank() const { return rank_; }
  // Floats from one projected, or rebuilt, slice to the next.
  [[nodiscard]] std::size_t projected_stride() const { return kernels::padded_columns(rank_); }
  [[nodiscard]] std::size_t rebuilt_stride() const { return kernels::padded_columns(slice_); }

  // Whole slices, densely packed, to U^T times each. `ahead` is what comes next.
  void project(std::span<const float> slices, std::span<float> projected,
               const kernels::Ahead& ahead = {}) const;
  // Densely packed projections to U times each.
  void rebuild(std::span<const float> projections, std::span<float> slices,
               const kernels::Ahead& ahead = {}) const;

  // U as it was given.
  [[nodiscard]] std::vector<float> columns() const;
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  std::size_t slice_ = 0;
  std::size_t rank_ = 0;
  std::vector<float> down_;  // U
  std::vector<float> up_;    // U^T
  std::uint64_t hash_ = 0;
};

// Directions in the order of the energy (sum of squares) that the samples have along them.
struct Spectrum {
  std::size_t slice = 0;
  std::vector<double> energies;    // descending; at most `slice`, those beyond are zero
  std::vector<double> directions;  // column-major, `slice` each, as many as energies

  [[nodiscard]] double total() const;
  // The least rank that keeps `share` of the energy; at least 1.
  [[nodiscard]] std::size_t rank_for(double share) const;
  // The first `rank` directions as the columns of U, row-major. Directions that the samples do not
  // determine are filled up with any that keep the columns orthonormal.
  [[nodiscard]] std::vector<float> columns(std::size_t rank) const;
};

// From the K x K matrix of second moments, and from n < K samples of K floats by way of their n x n
// inner products: the same directions.
[[nodiscard]] Spectrum spectrum_of_moments(std::span<const float> moments, std::size_t slice);
[[nodiscard]] Spectrum spectrum_of_samples(std::span<const float> samples, std::size_t slice);

// The second moments of the slices seen so far: the samples themselves as long as they are fewer
// than K, their K x K matrix afterwards. Never more than K*K floats.
class SliceStatistics {
 public:
  SliceStatistics() = default;
  explicit SliceStatistics(std::size_t slice) : slice_(slice) {}

  // `samples` holds whole slices.
  void add(std::span<const float> samples);
  void add(const SliceStatistics& other);
  // Lets old samples weigh no more than `most` new ones.
  void forget(double most);

  [[nodiscard]] double weight() const { return weight_; }
  [[nodiscard]] Spectrum spectrum() const;
  // Sum of squares of all samples, and of what lies along the columns of a basis.
  [[nodiscard]] double energy() const;
  [[nodiscard]] double energy_within(const Basis& basis) const;

  void state(Archive& archive);

 private:
  [[nodiscard]] std::vector<float> as_moments() const;
  void fold();
  void add_moments(std::span<const float> samples);

  std::size_t slice_ = 0;
  double weight_ = 0;    // samples, with what was forgotten taken off
  bool folded_ = false;  // values_ is the K x K matrix
  std::vector<float> values_;
  std::vector<float> scratch_;
};

}  // namespace thinreduce

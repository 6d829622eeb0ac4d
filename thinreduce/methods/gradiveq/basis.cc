#include "thinreduce/methods/gradiveq/basis.h"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <bit>
#include <numeric>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Doubles = Eigen::MatrixXd;

// Below this share of the largest energy, float32 samples have noise instead of a direction.
constexpr double kNoise = 1e-11;

Eigen::Map<const RowMajor> as_matrix(std::span<const float> values, std::size_t columns) {
  return {values.data(), static_cast<Eigen::Index>(values.size() / columns),
          static_cast<Eigen::Index>(columns)};
}

Eigen::SelfAdjointEigenSolver<Doubles> solve(const Doubles& symmetric) {
  Eigen::SelfAdjointEigenSolver<Doubles> solver(symmetric);
  ensure(solver.info() == Eigen::Success, "the eigenvectors of finite moments exist");
  return solver;
}

}  // namespace

Basis::Basis(std::span<const float> columns, std::size_t slice, std::size_t rank)
    : slice_(slice),
      rank_(rank),
      down_(slice * projected_stride()),
      up_(rank * rebuilt_stride()),
      hash_(checksum(std::as_bytes(columns))) {
  ensure(columns.size() == slice * rank && rank > 0, "a basis of the size it says");
  for (std::size_t k = 0; k < slice; ++k) {
    for (std::size_t j = 0; j < rank; ++j) {
      down_[k * projected_stride() + j] = columns[k * rank + j];
      up_[j * rebuilt_stride() + k] = columns[k * rank + j];
    }
  }
}

void Basis::project(std::span<const float> slices, std::span<float> projected,
                    const kernels::Ahead& ahead) const {
  kernels::multiply({down_, slice_, projected_stride()}, slices, projected, ahead);
}

void Basis::rebuild(std::span<const float> projections, std::span<float> slices,
                    const kernels::Ahead& ahead) const {
  kernels::multiply({up_, rank_, rebuilt_stride()}, projections, slices, ahead);
}

std::vector<float> Basis::columns() const {
  std::vector<float> columns(slice_ * rank_);
  for (std::size_t k = 0; k < slice_; ++k) {
    for (std::size_t j = 0; j < rank_; ++j) {
      columns[k * rank_ + j] = down_[k * projected_stride() + j];
    }
  }
  return columns;
}

double Spectrum::total() const {
  return std::accumulate(energies.begin(), energies.end(), 0.0);
}

std::size_t Spectrum::rank_for(double share) const {
  const double wanted = share * total();
  double kept = 0;
  std::size_t rank = 0;
  while (rank < energies.size() && (rank == 0 || kept < wanted)) kept += energies[rank++];
  return std::max<std::size_t>(1, rank);
}

std::vector<float> Spectrum::columns(std::size_t rank) const {
  const auto rows = static_cast<Eigen::Index>(slice);
  std::size_t determined = 0;
  while (determined < std::min(rank, energies.size()) &&
         energies[determined] > kNoise * energies[0]) {
    ++determined;
  }
  Doubles basis;
  const Eigen::Map<const Doubles> known(directions.data(), rows,
                                        static_cast<Eigen::Index>(determined));
  if (determined == rank) {
    basis = known;
  } else if (determined == 0) {
    basis = Doubles::Identity(rows, static_cast<Eigen::Index>(rank));
  } else {
    basis = Eigen::HouseholderQR<Doubles>(known).householderQ() *
            Doubles::Identity(rows, static_cast<Eigen::Index>(rank));
  }
  std::vector<float> columns(slice * rank);
  Eigen::Map<RowMajor>(columns.data(), rows, static_cast<Eigen::Index>(rank)) = basis.cast<float>();
  return columns;
}

Spectrum spectrum_of_moments(std::span<const float> moments, std::size_t slice) {
  const auto solver = solve(as_matrix(moments, slice).cast<double>());
  Spectrum spectrum{slice, std::vector<double>(slice), std::vector<double>(slice * slice)};
  Eigen::Map<Eigen::VectorXd>(spectrum.energies.data(), static_cast<Eigen::Index>(slice)) =
      solver.eigenvalues().reverse().cwiseMax(0.0);
  const auto rows = static_cast<Eigen::Index>(slice);
  Eigen::Map<Doubles>(spectrum.directions.data(), rows, rows) =
      solver.eigenvectors().rowwise().reverse();
  return spectrum;
}

// X = V S W^T: the inner products X X^T have the eigenvectors V, and W = X^T V / S.
Spectrum spectrum_of_samples(std::span<const float> samples, std::size_t slice) {
  const Doubles matrix = as_matrix(samples, slice).cast<double>();
  const auto count = matrix.rows();
  Spectrum spectrum{slice, {}, {}};
  if (count == 0) return spectrum;
  const auto solver = solve(matrix * matrix.transpose());
  const double largest = solver.eigenvalues()[count - 1];
  for (Eigen::Index i = count; i-- > 0;) {
    const double energy = solver.eigenvalues()[i];
    if (energy <= kNoise * largest) break;
    const Eigen::VectorXd direction =
        matrix.transpose() * solver.eigenvectors().col(i) / std::sqrt(energy);
    spectrum.energies.push_back(energy);
    spectrum.directions.insert(spectrum.directions.end(), direction.begin(), direction.end());
  }
  return spectrum;
}

void SliceStatistics::add(std::span<const float> samples) {
  if (samples.empty()) return;
  const std::size_t count = samples.size() / slice_;
  weight_ += static_cast<double>(count);
  if (!folded_ && values_.size() + samples.size() < slice_ * slice_) {
    values_.reserve(slice_ * slice_);
    values_.insert(values_.end(), samples.begin(), samples.end());
    return;
  }
  fold();
  add_moments(samples);
}

void SliceStatistics::add(const SliceStatistics& other) {
  if (other.values_.empty()) return;
  if (!other.folded_) {
    const double weight = weight_ + other.weight_;
    add(std::span<const float>(other.values_));
    weight_ = weight;
    return;
  }
  fold();
  kernels::add(values_, other.values_);
  weight_ += other.weight_;
}

void SliceStatistics::forget(double most) {
  if (weight_ <= most) return;
  fold();
  kernels::scale(values_, static_cast<float>(most / weight_));
  weight_ = most;
}

Spectrum SliceStatistics::spectrum() const {
  return folded_ ? spectrum_of_moments(values_, slice_) : spectrum_of_samples(values_, slice_);
}

double SliceStatistics::energy() const {
  double sum = 0;
  if (folded_) {
    for (std::size_t k = 0; k < slice_; ++k) sum += values_[k * slice_ + k];
  } else {
    for (const float value : values_) sum += static_cast<double>(value) * value;
  }
  return sum;
}

// The trace of U^T C U.
double SliceStatistics::energy_within(const Basis& basis) const {
  const Doubles moments = as_matrix(as_moments(), slice_).cast<double>();
  const Doubles columns = as_matrix(basis.columns(), basis.rank()).cast<double>();
  return columns.cwiseProduct(moments * columns).sum();
}

std::vector<float> SliceStatistics::as_moments() const {
  SliceStatistics copy(slice_);
  copy.folded_ = folded_;
  copy.values_ = values_;
  copy.fold();
  return copy.values_;
}

void SliceStatistics::fold() {
  if (folded_) return;
  const std::vector<float> samples = std::move(values_);
  values_.assign(slice_ * slice_, 0.0f);
  folded_ = true;
  add_moments(samples);
}

// values_ += X^T X, some samples and some rows at a time so that the product stays in the cache.
void SliceStatistics::add_moments(std::span<const float> samples) {
  constexpr std::size_t kSamples = 64;
  constexpr std::size_t kRows = 8;
  const std::size_t stride = kernels::padded_columns(slice_);
  scratch_.resize(kSamples * stride + kRows * kSamples + kRows * stride);
  for (std::size_t first = 0; first < samples.size(); first += kSamples * slice_) {
    const auto part = samples.subspan(first, std::min(kSamples * slice_, samples.size() - first));
    const std::size_t count = part.size() / slice_;
    const auto padded = std::span(scratch_).first(count * stride);
    std::fill(padded.begin(), padded.end(), 0.0f);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i * slice_), slice_,
                  padded.begin() + static_cast<std::ptrdiff_t>(i * stride));
    }
    for (std::size_t row = 0; row < slice_; row += kRows) {
      const std::size_t rows = std::min(kRows, slice_ - row);
      const auto transposed = std::span(scratch_).subspan(kSamples * stride, rows * count);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          transposed[r * count + i] = part[i * slice_ + row + r];
        }
      }
      const auto product =
          std::span(scratch_).subspan(kSamples * stride + kRows * kSamples, rows * stride);
      kernels::multiply({padded, count, stride}, transposed, product);
      for (std::size_t r = 0; r < rows; ++r) {
        kernels::add(std::span(values_).subspan((row + r) * slice_, slice_),
                     product.subspan(r * stride, slice_));
      }
    }
  }
}

void SliceStatistics::state(Archive& archive) {
  auto weight = std::bit_cast<std::uint64_t>(weight_);
  std::uint64_t folded = folded_ ? 1 : 0;
  archive.number("weight", weight);
  archive.number("folded", folded);
  archive.replicated("moments", values_);
  weight_ = std::bit_cast<double>(weight);
  folded_ = folded != 0;
  const std::size_t whole = slice_ * slice_;
  const bool fits = folded_ ? values_.size() == whole
                            : values_.size() < std::max<std::size_t>(1, whole) &&
                                  (slice_ == 0 || values_.size() % slice_ == 0);
  if (!fits || kernels::first_nonfinite(values_) != values_.size()) {
    throw Error(ErrorCode::bad_state, "the moments are not those of slices of this size");
  }
}

}  // namespace thinreduce

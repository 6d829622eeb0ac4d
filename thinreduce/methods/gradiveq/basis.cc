#include "thinreduce/methods/gradiveq/basis.h"

#include <fmt/format.h>

// Same bits on every CPU: Eigen's vector code fuses multiply-adds on ARM and adds in an order that
// depends on the vector width. This file has its own copy of Eigen without vector code, in its own
// namespace, so that the linker can't merge it with the vector code of another file or program.
#define EIGEN_DONT_VECTORIZE
#define Eigen thinreduce_eigen
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/dot.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Doubles = Eigen::MatrixXd;

// Products are cut into blocks by the size of the caches, which differs between CPUs.
[[maybe_unused]] const bool pinned_cache_sizes = [] {
  Eigen::setCpuCacheSizes(32 << 10, 256 << 10, 2 << 20);
  return true;
}();

// Below this fraction of the largest energy, the direction of float32 samples is rounding noise.
constexpr double kNoise = 1e-11;

// A matrix as the kernels take it: with padded rows.
using Padded = Eigen::Map<RowMajor, 0, Eigen::OuterStride<>>;
Padded as_padded(std::span<float> values, std::size_t rows, std::size_t columns) {
  return {values.data(), static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns),
          Eigen::OuterStride<>(static_cast<Eigen::Index>(kernels::padded_columns(columns)))};
}

Eigen::Map<const RowMajor> as_matrix(std::span<const float> values, std::size_t columns) {
  return {values.data(), static_cast<Eigen::Index>(values.size() / columns),
          static_cast<Eigen::Index>(columns)};
}

Eigen::SelfAdjointEigenSolver<Doubles> solve(const Doubles& symmetric) {
  Eigen::SelfAdjointEigenSolver<Doubles> solver(symmetric);
  ensure(solver.info() == Eigen::Success, "basis: eigenvectors of finite moments must exist",
         static_cast<int>(solver.info()));
  return solver;
}

}  // namespace

std::string wrong_column(std::span<const float> columns, std::size_t size) {
  for (std::size_t j = 0; j < size; ++j) {
    const auto column = as_matrix(columns, size).col(static_cast<Eigen::Index>(j));
    const double squared = column.cast<double>().squaredNorm();
    if (!(std::abs(squared - 1) < 1e-3)) {
      return fmt::format("the squared norm of column {} must be 1 and is {}", j, squared);
    }
  }
  return "";
}

Basis::Basis(std::span<const float> columns, std::size_t slice, std::size_t size) {
  ensure(columns.size() == slice * size, "basis: columns must be slice x size floats",
         columns.size(), slice, size);
  if (size == 0) return;
  slice_ = slice;
  size_ = size;
  down_.resize(slice * kernels::padded_columns(size));
  up_.resize(size * kernels::padded_columns(slice));
  hash_ = checksum(std::as_bytes(columns));
  as_padded(down_, slice, size) = as_matrix(columns, size);
  as_padded(up_, size, slice) = as_matrix(columns, size).transpose();
}

void Basis::project(std::span<const float> slices, std::span<float> projections,
                    kernels::Ahead ahead) const {
  kernels::multiply({down_, slice_, size_}, slices, projections, ahead);
}

void Basis::rebuild(std::span<const float> projections, std::span<float> slices,
                    kernels::Ahead ahead) const {
  kernels::multiply({up_, size_, slice_}, projections, slices, ahead);
}

std::vector<float> Basis::columns() const {
  std::vector<float> columns(slice_ * size_);
  for (std::size_t k = 0; k < slice_; ++k) {
    std::copy_n(&down_[k * kernels::padded_columns(size_)], size_, &columns[k * size_]);
  }
  return columns;
}

double Spectrum::total() const {
  return std::accumulate(energies.begin(), energies.end(), 0.0);
}

std::size_t Spectrum::size_for(double fraction) const {
  const double wanted = fraction * total();
  double kept = 0;
  std::size_t size = 0;
  while (size < energies.size() && (size == 0 || kept < wanted)) kept += energies[size++];
  return std::max<std::size_t>(1, size);
}

std::vector<float> Spectrum::columns(std::size_t size) const {
  const auto rows = static_cast<Eigen::Index>(slice);
  const auto wanted = static_cast<Eigen::Index>(size);
  std::size_t determined = 0;
  while (determined < std::min(size, energies.size()) &&
         energies[determined] > kNoise * energies[0]) {
    ++determined;
  }
  const Eigen::Map<const Doubles> known(directions.data(), rows,
                                        static_cast<Eigen::Index>(determined));
  Doubles basis = Doubles::Identity(rows, wanted);
  if (determined == size) {
    basis = known;
  } else if (determined > 0) {
    basis = Eigen::HouseholderQR<Doubles>(known).householderQ() * basis;
  }
  std::vector<float> columns(slice * size);
  Eigen::Map<RowMajor>(columns.data(), rows, wanted) = basis.cast<float>();
  return columns;
}

// X = V S W^T: the inner products X X^T have the eigenvectors V, and W = X^T V / S.
Spectrum spectrum_of(std::span<const float> values, std::size_t slice, bool are_moments) {
  const Doubles matrix = as_matrix(values, slice).cast<double>();
  const auto count = matrix.rows();
  Spectrum spectrum{slice, {}, {}};
  if (count == 0) return spectrum;
  const auto solver = solve(are_moments ? matrix : Doubles(matrix * matrix.transpose()));
  const double largest = solver.eigenvalues()[count - 1];
  for (Eigen::Index i = count; i-- > 0;) {
    const double energy = std::max(0.0, solver.eigenvalues()[i]);
    if (!are_moments && energy <= kNoise * largest) break;
    const auto vector = solver.eigenvectors().col(i);
    Eigen::VectorXd direction = vector;
    if (!are_moments) direction = matrix.transpose() * vector / std::sqrt(energy);
    spectrum.energies.push_back(energy);
    spectrum.directions.insert(spectrum.directions.end(), direction.begin(), direction.end());
  }
  return spectrum;
}

void SliceStatistics::add(std::span<const float> samples) {
  // All samples together are rarely longer than one may be.
  if (std::sqrt(kernels::dot(samples, samples)) <= kMaxLength) return take(samples);
  std::vector<float> shortened(samples.begin(), samples.end());
  for (std::size_t first = 0; first < shortened.size(); first += slice_) {
    const auto sample = std::span(shortened).subspan(first, slice_);
    const double factor = std::min(1.0, kMaxLength / std::sqrt(kernels::dot(sample, sample)));
    for (float& value : sample) value = static_cast<float>(value * factor);
  }
  take(shortened);
}

void SliceStatistics::take(std::span<const float> samples) {
  if (samples.empty()) return;
  weight_ += static_cast<double>(samples.size() / slice_);
  if (!folded_ && values_.size() + samples.size() < slice_ * slice_) {
    values_.reserve(slice_ * slice_);
    values_.insert(values_.end(), samples.begin(), samples.end());
    return;
  }
  fold();
  add_moments(samples);
}

void SliceStatistics::add(const SliceStatistics& other) {
  if (!other.folded_) return take(other.values_);
  fold();
  kernels::add(values_, other.values_);
  weight_ += other.weight_;
}

void SliceStatistics::forget(double max) {
  if (weight_ <= max) return;
  fold();
  kernels::scale(values_, static_cast<float>(max / weight_));
  weight_ = max;
}

Spectrum SliceStatistics::spectrum() const {
  return spectrum_of(values_, slice_, folded_);
}

double SliceStatistics::energy() const {
  if (!folded_) return kernels::dot(values_, values_);
  return as_matrix(values_, slice_).diagonal().cast<double>().sum();
}

// Returns the trace of U^T C U.
double SliceStatistics::energy_within(const Basis& basis) const {
  SliceStatistics copy = *this;
  copy.fold();
  const Doubles moments = as_matrix(copy.values_, slice_).cast<double>();
  const std::vector<float> u = basis.columns();
  const Doubles columns = as_matrix(u, basis.size()).cast<double>();
  return columns.cwiseProduct(moments * columns).sum();
}

void SliceStatistics::fold() {
  if (folded_) return;
  const std::vector<float> samples = std::move(values_);
  values_.assign(slice_ * slice_, 0.0f);
  folded_ = true;
  add_moments(samples);
}

// Adds X^T X to values_, a few samples and rows at a time so that the product stays in the cache.
void SliceStatistics::add_moments(std::span<const float> samples) {
  constexpr std::size_t kSamples = 64;
  constexpr std::size_t kRows = 8;
  const std::size_t stride = kernels::padded_columns(slice_);
  scratch_.resize(kSamples * stride + kRows * kSamples + kRows * slice_);
  for (std::size_t first = 0; first < samples.size(); first += kSamples * slice_) {
    const auto part = samples.subspan(first, std::min(kSamples * slice_, samples.size() - first));
    const auto x = as_matrix(part, slice_);
    const std::size_t count = part.size() / slice_;
    const auto padded = std::span(scratch_).first(count * stride);
    std::fill(padded.begin(), padded.end(), 0.0f);
    as_padded(padded, count, slice_) = x;
    for (std::size_t row = 0; row < slice_; row += kRows) {
      const std::size_t rows = std::min(kRows, slice_ - row);
      const auto transposed = std::span(scratch_).subspan(kSamples * stride, rows * count);
      const auto product =
          std::span(scratch_).subspan(kSamples * stride + kRows * kSamples, rows * slice_);
      Eigen::Map<RowMajor>(transposed.data(), static_cast<Eigen::Index>(rows), x.rows()) =
          x.middleCols(static_cast<Eigen::Index>(row), static_cast<Eigen::Index>(rows)).transpose();
      kernels::multiply({padded, count, slice_}, transposed, product);
      kernels::add(std::span(values_).subspan(row * slice_, product.size()), product);
    }
  }
}

void SliceStatistics::state(Archive& archive) {
  archive.real("weight", weight_, {0, 1e15});
  archive.flag("folded", folded_);
  archive.replicated("moments", values_);
  // Moments of as many samples as no training has are still floats.
  const double max = folded_ ? 1e37 : 1.001 * kMaxLength;
  archive.check_range("moments", values_, {-max, max});
  const std::size_t all = slice_ * slice_;
  const bool fits = folded_ ? values_.size() == all
                            : values_.size() < std::max<std::size_t>(1, all) &&
                                  (slice_ == 0 || values_.size() % slice_ == 0);
  if (archive.loading() && !fits) {
    throw Error(ErrorCode::bad_state,
                fmt::format("gradiveq: the {} floats of moments in the state do not describe "
                            "slices of {} floats; use another checkpoint",
                            values_.size(), slice_));
  }
}

}  // namespace thinreduce

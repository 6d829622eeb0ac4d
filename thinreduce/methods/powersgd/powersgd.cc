#include "thinreduce/methods/powersgd/powersgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/powersgd/orthonormal.h"
#include "thinreduce/methods/powersgd/thin_products.h"
#include "thinreduce/methods/powersgd/views.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

// Floats per run of rows: a run stays in the L1 cache between the addition of the gradient and the
// product.
constexpr std::size_t kRun = 4096;
// Runs that a thread takes at a time.
constexpr std::size_t kRunsPerBlock = 16;

// A matrix M of the bucket and the offsets of its thin factors P and Q.
struct Factored {
  MatrixView view;
  std::size_t p_offset = 0;
  std::size_t q_offset = 0;
  std::size_t basis = 0;  // columns of P and Q

  [[nodiscard]] std::span<float> p(std::span<float> all) const {
    return all.subspan(p_offset, view.rows * basis);
  }
  [[nodiscard]] std::span<float> q(std::span<float> all) const {
    return all.subspan(q_offset, view.columns * basis);
  }
};

class PowerSgd final : public Method {
 public:
  PowerSgd(const BucketLayout& layout, std::size_t basis, std::uint64_t seed)
      : seed_(seed), residual_(layout.elements) {
    MatrixViews views = view_as_matrices(layout, basis);
    std::size_t p_size = 0;
    std::size_t q_size = 0;
    for (const MatrixView& view : views.matrices) {
      matrices_.push_back({view, p_size, q_size, basis});
      p_size += view.rows * basis;
      q_size += view.columns * basis;
    }
    plain_ = std::move(views.plain);
    p_size_ = p_size;
    for (const MatrixView& view : plain_) p_size += view.elements();
    first_sum_.resize(p_size);
    q_.resize(q_size);
    random_columns(q_, seed);
    next_q_.resize(q_size);
  }

  // M is gradient plus residual. It is built in the residual, so that a failed exchange loses
  // nothing.
  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == residual_.size(), "powersgd: the bucket must keep its size",
           bucket.values.size(), residual_.size());
    const float share = 1.0f / static_cast<float>(exchange.size());
    exchange.timed(Stage::encode, [&] { project(bucket.values, exchange.workers); });
    sum_floats(exchange, first_sum_, share);
    exchange.timed(Stage::encode, [&] {
      require_finite_sum(exchange, first_sum_, "value of the first sum");
      back_project(exchange.id().step);
    });
    sum_floats(exchange, next_q_, share);
    exchange.timed(Stage::decode, [&] {
      require_finite_sum(exchange, next_q_, "value of the second sum");
      reconstruct(bucket.values, exchange.workers);
    });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    archive.summed("residual", residual_);
    archive.replicated("q", q_);
    if (q_.size() != next_q_.size()) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("powersgd: the saved 'q' has {} values, this bucket needs {}; load "
                              "it with the same layout and basis",
                              q_.size(), next_q_.size()));
    }
    if (archive.loading()) shrink_q();
  }

  [[nodiscard]] std::uint64_t fingerprint() const override {
    return q_.empty() ? 0 : checksum(bytes(q_));
  }

 private:
  static std::span<const std::byte> bytes(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  }

  // Calls `work(first row, first element, elements)` for runs of whole rows, on all threads.
  template <typename Work>
  static void for_runs(const MatrixView& view, Workers workers, const Work& work) {
    const std::size_t rows = std::max<std::size_t>(1, kRun / view.columns);
    workers.for_runs(view.rows, kRunsPerBlock * rows,
                     [&](std::size_t begin, std::size_t all, std::size_t /*thread*/) {
                       for (std::size_t row = begin; row < begin + all; row += rows) {
                         const std::size_t count = std::min(rows, begin + all - row);
                         work(row, view.offset + row * view.columns, count * view.columns);
                       }
                     });
  }

  // P = M Q.
  void project(std::span<const float> gradient, Workers workers) {
    const std::span<float> residual(residual_);
    for (const Factored& matrix : matrices_) {
      const auto p = matrix.p(first_sum_);
      const auto q = matrix.q(q_);
      for_runs(matrix.view, workers, [&](std::size_t row, std::size_t first, std::size_t count) {
        const auto m = residual.subspan(first, count);
        kernels::add(m, gradient.subspan(first, count));
        kernels::times({m, matrix.view.columns}, q, {p, matrix.view.rows, row});
      });
    }
    auto out = first_sum_.begin() + static_cast<std::ptrdiff_t>(p_size_);
    for (const MatrixView& view : plain_) {
      const auto run = residual.subspan(view.offset, view.elements());
      kernels::add(run, gradient.subspan(view.offset, view.elements()));
      out = std::copy(run.begin(), run.end(), out);
    }
  }

  // Q = M' P with P orthonormal. All ranks orthonormalise the same bits of P.
  void back_project(std::uint64_t step) {
    std::fill(next_q_.begin(), next_q_.end(), 0.0f);
    for (const Factored& matrix : matrices_) {
      const auto p = matrix.p(first_sum_);
      orthonormalise(p, matrix.view.rows, mix(seed_ + mix(step)) + matrix.p_offset);
      kernels::add_transposed_times(
          {std::span(residual_).subspan(matrix.view.offset, matrix.view.elements()),
           matrix.view.columns},
          {p, matrix.view.rows, 0}, matrix.q(next_q_));
    }
  }

  // The mean is P Q'; the residual keeps M - P Q'. Q starts the next power iteration.
  void reconstruct(std::span<float> values, Workers workers) {
    const std::span<float> residual(residual_);
    for (const Factored& matrix : matrices_) {
      const auto p = matrix.p(first_sum_);
      const auto q = matrix.q(next_q_);
      for_runs(matrix.view, workers, [&](std::size_t row, std::size_t first, std::size_t count) {
        kernels::split_product({p, matrix.view.rows, row}, q,
                               {residual.subspan(first, count), values.subspan(first, count)});
      });
    }
    std::size_t at = p_size_;
    for (const MatrixView& view : plain_) {
      std::copy_n(&first_sum_[at], view.elements(), &values[view.offset]);
      std::fill_n(&residual[view.offset], view.elements(), 0.0f);
      at += view.elements();
    }
    std::swap(q_, next_q_);
    shrink_q();
  }

  // Only the directions of Q's columns matter from here on. After a huge gradient they are so long
  // that the next M Q would overflow; a power of two shortens them without rounding.
  void shrink_q() {
    constexpr float kLong = 1024;
    for (const Factored& matrix : matrices_) {
      const auto q = matrix.q(q_);
      const float largest = kernels::largest_magnitude(q);
      if (largest > kLong) kernels::scale(q, std::ldexp(1.0f, -std::ilogb(largest)));
    }
  }

  std::uint64_t seed_;
  std::vector<Factored> matrices_;
  std::vector<MatrixView> plain_;
  std::size_t p_size_ = 0;
  std::vector<float> residual_;
  std::vector<float> first_sum_;  // P of all matrices, then the plain elements
  std::vector<float> q_;          // Q of all matrices; the same on all ranks
  std::vector<float> next_q_;
};

}  // namespace

MethodInfo powersgd_info() {
  MethodInfo info;
  info.name = "powersgd";
  info.wire_id = 11;
  info.algebra = Algebra::sum;
  info.summary =
      "Approximates each matrix by a product of two thin matrices, found by one power iteration "
      "per training step; only the thin matrices are sent, and the rest stays in a residual.";
  info.paper =
      "Vogels et al. 2019, PowerSGD: Practical Low-Rank Gradient Compression for Distributed "
      "Optimization";
  info.options = {OptionInfo::integer(
                      "basis", 8, 1, 1024,
                      "Number of columns of the two thin matrices per tensor (the paper's rank r); "
                      "larger values send more and approximate better.")
                      .formerly("rank")};
  info.presets = {
      {"paper", "basis=2", "Uses the basis size with which the paper trains image networks."}};
  info.make = [](const Options& options, const MethodSetup& setup) {
    return std::make_unique<PowerSgd>(setup.layout,
                                      static_cast<std::size_t>(options.integer("basis")),
                                      mix(setup.seed + mix(setup.layout.id)));
  };
  return info;
}

}  // namespace thinreduce

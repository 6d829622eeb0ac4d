// A Count Sketch (Charikar, Chen, Farach-Colton 2002): a small table of floats from which the large
// elements of a long vector can be estimated. It is linear: the sketch of a sum is the sum of the
// sketches.
//
//   CountSketch sketch({.columns = 10'000});
//   sketch.accumulate(gradient);
//   for (auto [index, estimate] : sketch.heavy_hitters(gradient.size(), 0.01f)) ...
//
// One row estimates element i without bias and with a variance of at most (|g|^2 - g_i^2) /
// columns; the sketch takes the median of its rows. Sketches with the same shape and seed use the
// same hash functions on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/methods/sketch/sketch_rows.h"

namespace thinreduce {

struct CountSketchOptions {
  std::size_t rows = 5;     // must be odd and at most 15; 1, 3 and 5 are fast
  std::size_t columns = 0;  // rounded up to a multiple of 16
  std::uint64_t seed = 0;   // chooses the hash functions
};

// An element whose estimate is large.
struct HeavyHitter {
  std::size_t index = 0;
  float estimate = 0;

  bool operator==(const HeavyHitter&) const = default;
};

class CountSketch {
 public:
  // Throws Error{bad_input} for an invalid shape.
  explicit CountSketch(const CountSketchOptions& options);

  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  // Return the cells, row after row.
  [[nodiscard]] std::span<float> cells() { return cells_; }
  [[nodiscard]] std::span<const float> cells() const { return cells_; }

  // Sets all cells to 0 and switches to the hash functions of `seed`.
  void reset(std::uint64_t seed);

  // Adds values that start at element `first`, which must be a multiple of 16, or one value at any
  // element. Elements must be below 2^36.
  void accumulate(std::span<const float> values, std::uint64_t first = 0, Workers workers = {});
  void add(std::uint64_t element, float value);
  // Adds the first `elements` values, which values_of(run, thread) returns run by run. They must be
  // valid until the thread asks for others, and several threads may ask for the same.
  using ValuesOf = std::function<std::span<const float>(Range run, std::size_t thread)>;
  void accumulate(std::size_t elements, const ValuesOf& values_of, Workers workers = {});
  // Adds the cells of `other`. Throws Error{bad_input} unless it has the same shape and seed.
  void merge(const CountSketch& other);

  // Estimates the elements from `first` on, which must be a multiple of 16, or any one element.
  void estimate(std::uint64_t first, std::span<float> estimates, Workers workers = {}) const;
  [[nodiscard]] float estimate(std::uint64_t element) const;
  // Returns those of the first `elements` elements whose estimate has at least `min_magnitude`,
  // ordered by index.
  [[nodiscard]] std::vector<HeavyHitter> heavy_hitters(std::size_t elements,
                                                       float min_magnitude) const;
  // Estimates the L2 norm of the whole vector.
  [[nodiscard]] double norm() const;

  // docs/methods/sketch.md specifies the bytes. load() throws Error{bad_frame} for invalid bytes,
  // and allocates no more memory than their length.
  [[nodiscard]] std::vector<std::byte> save() const;
  [[nodiscard]] static CountSketch load(std::span<const std::byte> bytes);

 private:
  [[nodiscard]] kernels::SketchRows shape() const { return {rows_, columns_}; }
  template <typename RunOf>
  void split_over_threads(std::size_t elements, Workers workers, const RunOf& run_of);
  [[nodiscard]] std::size_t parts_of(std::size_t elements) const;
  template <typename RunOf>
  void split_cells_over_threads(std::size_t elements, Workers workers, const RunOf& run_of);
  // Add values to some rows, or to some groups of columns of one row.
  void accumulate_rows(std::span<const float> values, std::uint64_t first, Range rows);
  void accumulate_columns(std::span<const float> values, std::uint64_t first, std::size_t row,
                          Range groups);

  std::vector<kernels::SketchRow> rows_;
  std::size_t columns_;
  std::uint64_t seed_;
  kernels::AlignedFloats cells_;                    // a group of columns is one cache line
  std::vector<kernels::AlignedFloats> more_cells_;  // of the later parts of many values
};

}  // namespace thinreduce

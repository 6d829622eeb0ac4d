#include "thinreduce/methods/sketch/count_sketch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

constexpr std::uint32_t kMagic = 0x314B5343;  // "CSK1"
constexpr std::size_t kMaxColumns = std::numeric_limits<std::uint32_t>::max() / 2;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 36;
// Elements per run of values or estimates, which stays in the L1 cache.
constexpr std::size_t kRun = 4096;
static_assert(kRun % kernels::kSketchBlock == 0);
// Elements per run of values that all rows get before the next: long, because a row's hash function
// takes some time to start, and in the L2 cache.
constexpr std::size_t kSharedRun = 16384;
static_assert(kSharedRun % kernels::kSketchBlock == 0);

struct Run {
  std::span<const float> values;
  std::uint64_t first;  // element
};

std::size_t whole_groups(std::size_t columns) {
  constexpr std::size_t kGroup = kernels::kSketchBlock;
  return (columns + kGroup - 1) / kGroup * kGroup;
}

void check_shape(std::size_t rows, std::size_t columns) {
  if (rows % 2 == 0 || rows > kernels::kMaxSketchRows) {
    throw Error(ErrorCode::bad_input,
                fmt::format("a sketch must have an odd number of rows from 1 to {}, got {}",
                            kernels::kMaxSketchRows, rows));
  }
  if (columns == 0 || columns > kMaxColumns) {
    throw Error(ErrorCode::bad_input,
                fmt::format("a sketch must have 1 to {} columns, got {}", kMaxColumns, columns));
  }
}

void check_range(std::uint64_t first, std::size_t count) {
  if (first % kernels::kSketchBlock != 0 || first > kMaxElements || count > kMaxElements - first) {
    throw Error(ErrorCode::bad_input,
                fmt::format("elements {} to {} + {} of a sketch: the first must be a multiple of "
                            "{}, and all must be below 2^36",
                            first, first, count, kernels::kSketchBlock));
  }
}

// Returns a uniform number below the prime: a draw of 61 bits that equals the prime is repeated.
std::uint64_t draw_coefficient(std::uint64_t seed, std::uint64_t counter) {
  for (;; counter += 1000) {
    const std::uint64_t drawn = mix(mix(seed) + counter) & kernels::kSketchPrime;
    if (drawn < kernels::kSketchPrime) return drawn;
  }
}

}  // namespace

CountSketch::CountSketch(const CountSketchOptions& options)
    : columns_(whole_groups(options.columns)), seed_(options.seed) {
  check_shape(options.rows, options.columns);
  rows_.resize(options.rows);
  cells_.resize(options.rows * columns_);
  reset(options.seed);
}

void CountSketch::reset(std::uint64_t seed) {
  seed_ = seed;
  std::uint64_t counter = 0;
  for (auto& row : rows_) {
    for (auto& coefficient : row.coefficients) coefficient = draw_coefficient(seed, counter++);
  }
  std::fill(cells_.begin(), cells_.end(), 0.0f);
}

void CountSketch::accumulate(std::span<const float> values, std::uint64_t first, Workers workers) {
  check_range(first, values.size());
  split_over_threads(values.size(), workers, [&](Range run, std::size_t /*thread*/) {
    return Run{part(values, run), first + run.begin};
  });
}

void CountSketch::accumulate(std::size_t elements, const ValuesOf& values_of, Workers workers) {
  check_range(0, elements);
  split_over_threads(elements, workers, [&](Range run, std::size_t thread) {
    return Run{values_of(run, thread), run.begin};
  });
}

// A cell must get its values in an order that does not depend on the number of threads. Many values
// are cut into parts, each of which is added to cells of its own; these are added up in the order
// of the parts. run_of(run, thread) returns the values of a run.
template <typename RunOf>
void CountSketch::split_over_threads(std::size_t elements, Workers workers, const RunOf& run_of) {
  const std::size_t parts = parts_of(elements);
  if (parts == 1) return split_cells_over_threads(elements, workers, run_of);
  more_cells_.resize(parts - 1);
  workers.for_blocks(parts, [&](std::size_t p, std::size_t thread) {
    if (p > 0) more_cells_[p - 1].assign(cells_.size(), 0.0f);
    const std::span<float> cells = p == 0 ? cells_ : more_cells_[p - 1];
    // Whole runs, so that a part begins with a block.
    const Range runs = cut({0, (elements + kSharedRun - 1) / kSharedRun}, parts, p);
    for (std::size_t r = runs.begin; r < runs.end; ++r) {
      const Run run = run_of({r * kSharedRun, std::min((r + 1) * kSharedRun, elements)}, thread);
      kernels::sketch_accumulate(run.values, run.first / kernels::kSketchBlock, shape(), cells);
    }
  });
  for_floats(workers, cells_.size(), [&](std::size_t first, std::size_t count) {
    const auto sum = std::span<float>(cells_).subspan(first, count);
    for (const auto& more : more_cells_) {
      kernels::add(sum, std::span<const float>(more).subspan(first, count));
    }
  });
}

// Returns the number of parts: long ones, and few beside the cells that each part fills and adds.
std::size_t CountSketch::parts_of(std::size_t elements) const {
  constexpr std::size_t kMinElements = std::size_t{1} << 19;
  constexpr std::size_t kElementsPerCell = 8;
  constexpr std::size_t kMaxParts = 8;
  return std::clamp<std::size_t>(
      elements / std::max(kMinElements, kElementsPerCell * cells_.size()), 1, kMaxParts);
}

// The threads share the cells and not the values: as many rows for each as can be, and the columns
// of the rows that are left. Each thread passes over all values once.
template <typename RunOf>
void CountSketch::split_cells_over_threads(std::size_t elements, Workers workers,
                                           const RunOf& run_of) {
  // More threads than rows would hash every value once per thread.
  const std::size_t threads = elements > kFloatsPerBlock ? std::min(workers.threads(), rows()) : 1;
  const std::size_t whole = rows() / threads;  // rows per thread
  workers.for_blocks(threads, [&](std::size_t own, std::size_t thread) {
    const Range columns = cut({0, columns_ / kernels::kSketchBlock}, threads, own);
    for (std::size_t begin = 0; begin < elements; begin += kSharedRun) {
      const Run run = run_of({begin, std::min(begin + kSharedRun, elements)}, thread);
      accumulate_rows(run.values, run.first, {own * whole, (own + 1) * whole});
      for (std::size_t row = threads * whole; row < rows(); ++row) {
        accumulate_columns(run.values, run.first, row, columns);
      }
    }
  });
}

void CountSketch::accumulate_rows(std::span<const float> values, std::uint64_t first, Range rows) {
  if (rows.size() == 0) return;
  kernels::sketch_accumulate(
      values, first / kernels::kSketchBlock, {part(std::span(rows_), rows), columns_},
      std::span<float>(cells_).subspan(rows.begin * columns_, rows.size() * columns_));
}

void CountSketch::accumulate_columns(std::span<const float> values, std::uint64_t first,
                                     std::size_t row, Range groups) {
  kernels::sketch_accumulate_columns(
      values, first / kernels::kSketchBlock, {std::span(rows_).subspan(row, 1), columns_},
      {groups.begin * kernels::kSketchBlock, groups.end * kernels::kSketchBlock},
      std::span<float>(cells_).subspan(row * columns_, columns_));
}

void CountSketch::add(std::uint64_t element, float value) {
  check_range(element / kernels::kSketchBlock * kernels::kSketchBlock, kernels::kSketchBlock);
  for (std::size_t row = 0; row < rows(); ++row) {
    const auto [column, negative] = kernels::sketch_place(rows_[row], columns_, element);
    cells_[row * columns_ + column] += negative ? -value : value;
  }
}

void CountSketch::merge(const CountSketch& other) {
  if (rows() != other.rows() || columns() != other.columns() || seed() != other.seed()) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("a sketch of {} x {} cells with seed {} cannot be merged with one of {} x "
                    "{} cells with seed {}: shapes and seeds must be equal",
                    rows(), columns(), seed(), other.rows(), other.columns(), other.seed()));
  }
  kernels::add(cells_, other.cells_);
}

void CountSketch::estimate(std::uint64_t first, std::span<float> estimates, Workers workers) const {
  check_range(first, estimates.size());
  for_floats(workers, estimates.size(), [&](std::size_t begin, std::size_t count) {
    kernels::sketch_estimate(cells_, shape(), (first + begin) / kernels::kSketchBlock,
                             estimates.subspan(begin, count));
  });
}

float CountSketch::estimate(std::uint64_t element) const {
  check_range(element / kernels::kSketchBlock * kernels::kSketchBlock, kernels::kSketchBlock);
  std::array<float, kernels::kMaxSketchRows> found;
  for (std::size_t row = 0; row < rows(); ++row) {
    const auto [column, negative] = kernels::sketch_place(rows_[row], columns_, element);
    const float cell = cells_[row * columns_ + column];
    found[row] = negative ? -cell : cell;
  }
  const auto middle = found.begin() + static_cast<std::ptrdiff_t>(rows() / 2);
  std::nth_element(found.begin(), middle, found.begin() + static_cast<std::ptrdiff_t>(rows()));
  return *middle + 0.0f;
}

std::vector<HeavyHitter> CountSketch::heavy_hitters(std::size_t elements,
                                                    float min_magnitude) const {
  std::vector<HeavyHitter> found;
  std::array<float, kRun> run;
  for (std::size_t first = 0; first < elements; first += kRun) {
    const auto estimates = std::span(run).first(std::min(kRun, elements - first));
    estimate(first, estimates);
    for (std::size_t i = 0; i < estimates.size(); ++i) {
      if (std::abs(estimates[i]) >= min_magnitude) found.push_back({first + i, estimates[i]});
    }
  }
  return found;
}

double CountSketch::norm() const {
  std::vector<double> energies;
  for (std::size_t row = 0; row < rows(); ++row) {
    double energy = 0;
    for (const float cell : cells().subspan(row * columns_, columns_)) {
      energy += static_cast<double>(cell) * cell;
    }
    energies.push_back(energy);
  }
  const auto middle = energies.begin() + static_cast<std::ptrdiff_t>(rows() / 2);
  std::nth_element(energies.begin(), middle, energies.end());
  return std::sqrt(*middle);
}

std::vector<std::byte> CountSketch::save() const {
  std::vector<std::byte> bytes(4 + 4 + 8 + 8 + cells_.size() * sizeof(float) + 8);
  const std::span out(bytes);
  store_value(out, 0, kMagic);
  store_value(out, 4, static_cast<std::uint32_t>(rows()));
  store_value(out, 8, static_cast<std::uint64_t>(columns()));
  store_value(out, 16, seed());
  std::memcpy(bytes.data() + 24, cells_.data(), cells_.size() * sizeof(float));
  store_value(out, bytes.size() - 8, checksum(out.first(bytes.size() - 8)));
  return bytes;
}

CountSketch CountSketch::load(std::span<const std::byte> bytes) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::bad_frame,
                "saved sketch: " + why + "; use the bytes as they were saved");
  };
  ByteReader reader(bytes, "saved sketch");
  if (reader.value<std::uint32_t>() != kMagic) refuse("is not a sketch, or of another version");
  const auto rows = reader.value<std::uint32_t>();
  const auto columns = reader.value<std::uint64_t>();
  const auto seed = reader.value<std::uint64_t>();
  if (rows % 2 == 0 || rows > kernels::kMaxSketchRows || columns == 0 || columns > kMaxColumns ||
      columns % kernels::kSketchBlock != 0) {
    refuse(fmt::format("{} x {} cells are not a valid shape", rows, columns));
  }
  // This cannot overflow, because `columns` is bounded. Nothing is allocated before this check.
  const auto cells = reader.take(rows * columns * sizeof(float));
  const auto sum = reader.value<std::uint64_t>();
  reader.finish();
  if (sum != checksum(bytes.first(bytes.size() - 8)))
    refuse("the checksum does not match: the bytes were altered");
  CountSketch sketch({.rows = rows, .columns = columns, .seed = seed});
  std::memcpy(sketch.cells_.data(), cells.data(), cells.size());
  if (const auto bad = kernels::first_nonfinite(sketch.cells_); bad < sketch.cells_.size()) {
    refuse(fmt::format("cell {} is not finite", bad));
  }
  return sketch;
}

}  // namespace thinreduce

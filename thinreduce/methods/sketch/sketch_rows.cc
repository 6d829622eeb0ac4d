#include "thinreduce/methods/sketch/sketch_rows.h"

#include <algorithm>
#include <limits>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/sketch/sketch_rows.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

#ifndef THINREDUCE_KERNELS_SKETCH_ROWS_ONCE
#define THINREDUCE_KERNELS_SKETCH_ROWS_ONCE
namespace thinreduce::kernels {
namespace {

// Yields the words of blocks at equal distances, of which it gets the first four. The third
// difference of a cubic polynomial is constant, so each word costs three additions instead of three
// multiplications.
class WordStream {
 public:
  WordStream(const SketchRow& row, std::uint64_t block)
      : WordStream({sketch_word(row, block), sketch_word(row, block + 1),
                    sketch_word(row, block + 2), sketch_word(row, block + 3)}) {}
  explicit WordStream(const std::array<std::uint64_t, 4>& words)
      : word_(words[0]),
        first_(subtract(words[1], words[0])),
        second_(subtract(subtract(words[2], words[1]), first_)) {
    const std::uint64_t last = subtract(words[3], words[2]);
    third_ = subtract(subtract(last, subtract(words[2], words[1])), second_);
  }
  [[nodiscard]] std::uint64_t word() const { return word_; }
  [[nodiscard]] std::array<std::uint64_t, 3> differences() const {
    return {first_, second_, third_};
  }
  std::uint64_t next() {
    const std::uint64_t word = word_;
    word_ = add(word_, first_);
    first_ = add(first_, second_);
    second_ = add(second_, third_);
    return word;
  }

 private:
  static std::uint64_t reduced(std::uint64_t sum) {  // sum must be below twice the prime
    return std::min(sum, sum - kSketchPrime);
  }
  static std::uint64_t add(std::uint64_t a, std::uint64_t b) { return reduced(a + b); }
  static std::uint64_t subtract(std::uint64_t a, std::uint64_t b) {
    return reduced(a + kSketchPrime - b);
  }

  std::uint64_t word_;
  std::uint64_t first_;  // differences
  std::uint64_t second_;
  std::uint64_t third_;
};

// The numbers 0 to 15, XORed with x, in row x.
alignas(64) constexpr auto kXorOrders = [] {
  std::array<std::array<std::uint32_t, kSketchBlock>, kSketchBlock> orders{};
  for (std::uint32_t x = 0; x < kSketchBlock; ++x) {
    for (std::uint32_t i = 0; i < kSketchBlock; ++i) orders[x][i] = i ^ x;
  }
  return orders;
}();

}  // namespace
}  // namespace thinreduce::kernels
#endif  // THINREDUCE_KERNELS_SKETCH_ROWS_ONCE

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells) {
  reference::sketch_accumulate(values, first_block, sketch, cells);
}
void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells) {
  reference::sketch_accumulate_columns(values, first_block, sketch, columns, cells);
}
void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates) {
  reference::sketch_estimate(cells, sketch, first_block, estimates);
}

#else

// A block is one vector of 16 lanes or several shorter ones.
using Floats = hn::CappedTag<float, kSketchBlock>;
using Integers = hn::RebindToUnsigned<Floats>;

// Blocks per tile. The words of a tile are computed first and their cells prefetched, because a
// sketch is larger than the L2 cache. A tile, its words and its cells stay in the L1 cache.
constexpr std::size_t kTileBlocks = 64;

// The words of the blocks of a tile, and the first columns of their groups.
struct Tile {
  alignas(64) std::array<std::uint64_t, kTileBlocks> words;
  alignas(64) std::array<std::uint64_t, kTileBlocks> groups;
};

// Yields the words of consecutive blocks of some rows. With n lanes, each lane is a WordStream of
// every n-th block.
class WordStreams {
 public:
  WordStreams(std::span<const SketchRow> rows, std::uint64_t first_block) {
    for (std::size_t row = 0; row < rows.size(); ++row)
      start(streams_[row], rows[row], first_block);
  }

  // Writes the next words of a row and prefetches their cells. All tiles but the last must be full.
  void next(std::size_t row, std::size_t blocks, const float* cells, std::size_t columns,
            Tile& tile) {
    const Words d;
    const std::size_t lanes = hn::Lanes(d);
    Stream& stream = streams_[row];
    auto word = hn::Load(d, stream.word.data());
    auto first = hn::Load(d, stream.first.data());
    auto second = hn::Load(d, stream.second.data());
    const auto third = hn::Load(d, stream.third.data());
    const auto groups = hn::Set(d, columns / kSketchBlock);
    const auto low_half = hn::Set(d, 0xffffffff);
    for (std::size_t b = 0; b < blocks; b += lanes) {
      hn::Store(word, d, &tile.words[b]);
      const auto draw = hn::And(hn::ShiftRight<20>(word), low_half);
      const auto group = hn::ShiftRight<32>(multiply_low_halves(draw, groups));
      hn::Store(hn::ShiftLeft<kBlockBits>(group), d, &tile.groups[b]);
      word = add(word, first);
      first = add(first, second);
      second = add(second, third);
    }
    hn::Store(word, d, stream.word.data());
    hn::Store(first, d, stream.first.data());
    hn::Store(second, d, stream.second.data());
    for (std::size_t b = 0; b < blocks; ++b) hwy::Prefetch(cells + tile.groups[b]);
  }

 private:
  using Words = hn::CappedTag<std::uint64_t, 8>;
  using WordVector = hn::Vec<Words>;
  static constexpr int kBlockBits = 4;
  static_assert(kSketchBlock == 1 << kBlockBits);

  // The current words of the lanes, and their differences.
  struct Stream {
    alignas(64) std::array<std::uint64_t, 8> word;
    alignas(64) std::array<std::uint64_t, 8> first;
    alignas(64) std::array<std::uint64_t, 8> second;
    alignas(64) std::array<std::uint64_t, 8> third;
  };

  static void start(Stream& stream, const SketchRow& row, std::uint64_t first_block) {
    const std::size_t lanes = hn::Lanes(Words());
    std::array<std::uint64_t, 32> words;
    WordStream all(row, first_block);
    for (std::size_t i = 0; i < 4 * lanes; ++i) words[i] = all.next();
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const WordStream own(
          {words[lane], words[lane + lanes], words[lane + 2 * lanes], words[lane + 3 * lanes]});
      stream.word[lane] = own.word();
      const auto [first, second, third] = own.differences();
      stream.first[lane] = first;
      stream.second[lane] = second;
      stream.third[lane] = third;
    }
  }
  static HWY_INLINE WordVector add(WordVector a, WordVector b) {
    const auto sum = hn::Add(a, b);
    return hn::Min(sum, hn::Sub(sum, hn::Set(Words(), kSketchPrime)));
  }
  // Both must be below 2^32.
  static HWY_INLINE WordVector multiply_low_halves(WordVector a, WordVector b) {
    const hn::Repartition<std::uint32_t, Words> halves;
    return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
  }

  std::array<Stream, kMaxSketchRows> streams_;
};

// A word permutes the elements of its block by XOR: vector `part` of the group holds vector
// `part ^ swapped_vector(word)` of the block, with its lanes in the order swapped_lanes(word).
HWY_INLINE std::size_t swapped_vector(std::uint64_t word) {
  return word_lane_xor(word) / hn::Lanes(Floats());
}
HWY_INLINE auto swapped_lanes(std::uint64_t word) {
  const std::size_t lanes = hn::Lanes(Floats());
  return hn::IndicesFromVec(
      Floats(), hn::Load(Integers(), kXorOrders[word_lane_xor(word) & (lanes - 1)].data()));
}

// SSE4 has no shift by another number of bits in every lane.
constexpr bool kShiftsByLane = HWY_TARGET != HWY_SSE4;

// Flips the signs of `values`, which are vector `part` of their block.
HWY_INLINE hn::Vec<Floats> with_signs(hn::Vec<Floats> values, const std::uint64_t& word,
                                      std::size_t part) {
  const Floats d;
  const Integers integers;
  const std::size_t lanes = hn::Lanes(d);
  const auto minus = hn::BitCast(d, hn::Set(integers, 0x80000000));
  if (lanes == kSketchBlock) {
    const auto negative = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&word));
    return hn::Xor(values, hn::IfThenElseZero(negative, minus));
  }
  if (kShiftsByLane) {
    // The sign of lane l becomes its highest bit.
    const auto bits = hn::Set(integers, static_cast<std::uint32_t>(word));
    const auto to_top = hn::Sub(hn::Set(integers, static_cast<std::uint32_t>(31 - part * lanes)),
                                hn::Iota(integers, 0));
    return hn::Xor(values, hn::And(hn::BitCast(d, hn::Shl(bits, to_top)), minus));
  }
  const auto own = hn::Set(integers, word_signs(word) >> part * lanes);
  const auto bit = hn::Shl(hn::Set(integers, 1), hn::Iota(integers, 0));
  const auto negative = hn::VecFromMask(integers, hn::TestBit(own, bit));
  return hn::Xor(values, hn::And(hn::BitCast(d, negative), minus));
}

// Adds a block to its group of columns.
HWY_INLINE void add_block(const float* HWY_RESTRICT const block, const std::uint64_t& word,
                          float* HWY_RESTRICT const group) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t swapped = swapped_vector(word);
  const auto lane_order = swapped_lanes(word);
  for (std::size_t part = 0; part < kSketchBlock / lanes; ++part) {
    const auto signed_values = with_signs(hn::LoadU(d, block + part * lanes), word, part);
    const auto placed = hn::TableLookupLanes(signed_values, lane_order);
    float* const to = group + (part ^ swapped) * lanes;
    hn::StoreU(hn::Add(hn::LoadU(d, to), placed), d, to);
  }
}

void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells) {
  const std::size_t whole = values.size() / kSketchBlock;
  Tile tile;
  WordStreams streams(sketch.rows, first_block);
  for (std::size_t first = 0; first < whole; first += kTileBlocks) {
    const std::size_t blocks = std::min(kTileBlocks, whole - first);
    for (std::size_t row = 0; row < sketch.rows.size(); ++row) {
      float* const row_cells = cells.data() + row * sketch.columns;
      streams.next(row, blocks, row_cells, sketch.columns, tile);
      for (std::size_t b = 0; b < blocks; ++b) {
        add_block(values.data() + (first + b) * kSketchBlock, tile.words[b],
                  row_cells + tile.groups[b]);
      }
    }
  }
  reference::sketch_accumulate(values.subspan(whole * kSketchBlock), first_block + whole, sketch,
                               cells);
}

// Lists the blocks of a tile that belong to the columns first: a branch per block would be
// mispredicted.
void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells) {
  const std::size_t whole = values.size() / kSketchBlock;
  Tile tile;
  std::uint8_t listed[kTileBlocks];
  WordStreams streams(sketch.rows, first_block);
  for (std::size_t first = 0; first < whole; first += kTileBlocks) {
    const std::size_t blocks = std::min(kTileBlocks, whole - first);
    for (std::size_t row = 0; row < sketch.rows.size(); ++row) {
      float* const row_cells = cells.data() + row * sketch.columns;
      streams.next(row, blocks, row_cells, sketch.columns, tile);
      std::size_t count = 0;
      for (std::size_t b = 0; b < blocks; ++b) {
        listed[count] = static_cast<std::uint8_t>(b);
        count += columns.hold(tile.groups[b]);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t b = listed[i];
        add_block(values.data() + (first + b) * kSketchBlock, tile.words[b],
                  row_cells + tile.groups[b]);
      }
    }
  }
  reference::sketch_accumulate_columns(values.subspan(whole * kSketchBlock), first_block + whole,
                                       sketch, columns, cells);
}

HWY_INLINE hn::Vec<Floats> median(hn::Vec<Floats> a, hn::Vec<Floats> b, hn::Vec<Floats> c) {
  return hn::Max(hn::Min(a, b), hn::Min(hn::Max(a, b), c));
}

template <std::size_t rows>
HWY_INLINE void estimate_rows(std::span<const float> cells, const SketchRows& sketch,
                              std::uint64_t first_block, std::span<float> estimates) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = estimates.size() / kSketchBlock;
  std::array<Tile, rows> tiles;
  WordStreams streams(sketch.rows, first_block);
  for (std::size_t first = 0; first < whole; first += kTileBlocks) {
    const std::size_t blocks = std::min(kTileBlocks, whole - first);
    for (std::size_t row = 0; row < rows; ++row) {
      streams.next(row, blocks, cells.data() + row * sketch.columns, sketch.columns, tiles[row]);
    }
    for (std::size_t b = 0; b < blocks; ++b) {
      // Returns row `row`'s estimates of vector `part` of the block.
      const auto says = [&](std::size_t row, std::size_t part) HWY_ATTR {
        const std::uint64_t& word = tiles[row].words[b];
        const float* const group = cells.data() + row * sketch.columns + tiles[row].groups[b];
        const auto found = hn::LoadU(d, group + (part ^ swapped_vector(word)) * lanes);
        return with_signs(hn::TableLookupLanes(found, swapped_lanes(word)), word, part);
      };
      float* const out = estimates.data() + (first + b) * kSketchBlock;
      for (std::size_t part = 0; part < kSketchBlock / lanes; ++part) {
        auto middle = says(0, part);
        if constexpr (rows == 3) {
          middle = median(middle, says(1, part), says(2, part));
        } else if constexpr (rows == 5) {
          // The smallest and the largest of four cannot be the median of five.
          const auto second = says(1, part);
          const auto third = says(2, part);
          const auto fourth = says(3, part);
          const auto low = hn::Max(hn::Min(middle, second), hn::Min(third, fourth));
          const auto high = hn::Min(hn::Max(middle, second), hn::Max(third, fourth));
          middle = median(low, high, says(4, part));
        }
        // Min and Max of zeros of both signs depend on the instruction set; -0 + 0 is +0 on all.
        hn::StoreU(hn::Add(middle, hn::Zero(d)), d, out + part * lanes);
      }
    }
  }
  reference::sketch_estimate(cells, sketch, first_block + whole,
                             estimates.subspan(whole * kSketchBlock));
}

void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates) {
  switch (sketch.rows.size()) {
    case 1:
      return estimate_rows<1>(cells, sketch, first_block, estimates);
    case 3:
      return estimate_rows<3>(cells, sketch, first_block, estimates);
    case 5:
      return estimate_rows<5>(cells, sketch, first_block, estimates);
    default:  // more rows than gradients need
      return reference::sketch_estimate(cells, sketch, first_block, estimates);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells) {
  reference::sketch_accumulate_columns(values, first_block, sketch, {0, sketch.columns}, cells);
}

void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells) {
  for (std::size_t row = 0; row < sketch.rows.size(); ++row) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t lane = i % kSketchBlock;
      if (lane == 0) word = sketch_word(sketch.rows[row], first_block + i / kSketchBlock);
      const auto [column, negative] = word_place(word, sketch.columns, lane);
      if (columns.hold(column)) {
        cells[row * sketch.columns + column] += negative ? -values[i] : values[i];
      }
    }
  }
}

void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates) {
  const std::size_t rows = sketch.rows.size();
  std::array<float, kMaxSketchRows> found;
  std::array<std::uint64_t, kMaxSketchRows> words{};
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    const std::size_t lane = i % kSketchBlock;
    for (std::size_t row = 0; row < rows; ++row) {
      if (lane == 0) words[row] = sketch_word(sketch.rows[row], first_block + i / kSketchBlock);
      const auto [column, negative] = word_place(words[row], sketch.columns, lane);
      const float cell = cells[row * sketch.columns + column];
      found[row] = negative ? -cell : cell;
    }
    const auto middle = found.begin() + static_cast<std::ptrdiff_t>(rows / 2);
    std::nth_element(found.begin(), middle, found.begin() + static_cast<std::ptrdiff_t>(rows));
    estimates[i] = *middle + 0.0f;
  }
}

}  // namespace reference

namespace {

void check(const SketchRows& sketch, std::size_t cells, std::uint64_t first_block,
           std::size_t values) {
  ensure(!sketch.rows.empty() && sketch.rows.size() <= kMaxSketchRows,
         "a sketch must have rows, and not too many", sketch.rows.size());
  ensure(sketch.columns > 0 && sketch.columns % kSketchBlock == 0 &&
             sketch.columns <= std::numeric_limits<std::uint32_t>::max(),
         "a sketch's columns must be a multiple of the block", sketch.columns);
  ensure(cells == sketch.rows.size() * sketch.columns, "a sketch must have rows * columns cells",
         cells, sketch.rows.size(), sketch.columns);
  ensure(first_block + values / kSketchBlock <= std::uint64_t{1} << 32,
         "a sketch must have at most 2^32 blocks", first_block, values);
}

}  // namespace

THINREDUCE_KERNEL(sketch_accumulate);
THINREDUCE_KERNEL(sketch_accumulate_columns);
THINREDUCE_KERNEL(sketch_estimate);

void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells) {
  check(sketch, cells.size(), first_block, values.size());
  THINREDUCE_CALL(sketch_accumulate)(values, first_block, sketch, cells);
}

void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells) {
  check(sketch, cells.size(), first_block, values.size());
  ensure(columns.first % kSketchBlock == 0 && columns.end % kSketchBlock == 0 &&
             columns.end <= sketch.columns,
         "columns must be whole groups", columns.first, columns.end, sketch.columns);
  THINREDUCE_CALL(sketch_accumulate_columns)(values, first_block, sketch, columns, cells);
}

void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates) {
  check(sketch, cells.size(), first_block, estimates.size());
  ensure(sketch.rows.size() % 2 == 1, "a median needs an odd number of rows", sketch.rows.size());
  THINREDUCE_CALL(sketch_estimate)(cells, sketch, first_block, estimates);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE

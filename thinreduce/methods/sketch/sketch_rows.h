// The loops of a Count Sketch: adding values to its rows, and estimating values from them.
//
// Elements are hashed in blocks of 16 neighbours. For block b, row j draws one word w = p_j(b),
// where p_j is a cubic polynomial with random coefficients modulo the prime 2^61 - 1: the words of
// any four blocks are independent and uniform (up to one part in 2^61). In a word,
//
//   bits  0-15  are the signs of the block's 16 elements,
//   bits 16-19  are a number x: element l of the block goes to column l XOR x of its group,
//   bits 20-51  choose the group of 16 neighbouring columns, by multiplication with their number.
//
// So signs are 4-wise independent over elements. Two elements of different blocks collide with
// probability 1/columns, as if each had been hashed on its own; two of the same block never do.
// docs/methods/sketch.md derives the variance of an estimate from that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

inline constexpr std::size_t kSketchBlock = 16;
inline constexpr std::uint64_t kSketchPrime = (std::uint64_t{1} << 61) - 1;
inline constexpr std::size_t kMaxSketchRows = 15;

// The polynomial of one row: coefficients below kSketchPrime, the constant first.
struct SketchRow {
  std::array<std::uint64_t, 4> coefficients{};
};

// The rows of a sketch; row j has cells [j * columns, (j + 1) * columns).
struct SketchRows {
  std::span<const SketchRow> rows;  // at most kMaxSketchRows; estimates need an odd number
  std::size_t columns = 0;          // must be a multiple of kSketchBlock below 2^32
};

// Returns the word of a block; block numbers must be below 2^32.
[[nodiscard]] inline std::uint64_t sketch_word(const SketchRow& row, std::uint64_t block) {
  std::uint64_t word = row.coefficients[3];
  for (std::size_t i = 3; i-- > 0;) {
    // The product is below 2^93, so one fold leaves less than twice the prime, and less than three
    // times the prime after adding the coefficient.
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(word) * block;
    word = (static_cast<std::uint64_t>(product) & kSketchPrime) +
           static_cast<std::uint64_t>(product >> 61);
    word += row.coefficients[i];
    word = (word & kSketchPrime) + (word >> 61);
    word -= word >= kSketchPrime ? kSketchPrime : 0;
  }
  return word;
}

// Return the fields of a word.
[[nodiscard]] inline std::uint32_t word_signs(std::uint64_t word) {
  return static_cast<std::uint32_t>(word & 0xffff);
}
[[nodiscard]] inline std::uint32_t word_lane_xor(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 16 & 15);
}
// Returns the first column of the group.
[[nodiscard]] inline std::size_t word_group(std::uint64_t word, std::size_t columns) {
  return ((word >> 20 & 0xffffffff) * (columns / kSketchBlock) >> 32) * kSketchBlock;
}

// The column of one element in one row, and its sign.
struct SketchPlace {
  std::size_t column = 0;
  bool negative = false;
};
[[nodiscard]] inline SketchPlace word_place(std::uint64_t word, std::size_t columns,
                                            std::size_t lane) {
  return {word_group(word, columns) + (lane ^ word_lane_xor(word)),
          (word_signs(word) >> lane & 1) != 0};
}
[[nodiscard]] inline SketchPlace sketch_place(const SketchRow& row, std::size_t columns,
                                              std::uint64_t element) {
  return word_place(sketch_word(row, element / kSketchBlock), columns, element % kSketchBlock);
}

// Adds `values`, which start at element 16 * first_block, to all rows.
void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells);
// Columns [first, end) of all rows, multiples of kSketchBlock, and the same for these alone.
struct SketchColumns {
  std::size_t first = 0;
  std::size_t end = 0;
  [[nodiscard]] bool hold(std::size_t column) const { return column - first < end - first; }
};
void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells);
// Sets `estimates`, which start at element 16 * first_block, to the medians over the rows. Cells
// must not be NaN; a zero result is always +0.
void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates);

// The scalar definition of the functions above.
namespace reference {
void sketch_accumulate(std::span<const float> values, std::uint64_t first_block,
                       const SketchRows& sketch, std::span<float> cells);
void sketch_accumulate_columns(std::span<const float> values, std::uint64_t first_block,
                               const SketchRows& sketch, const SketchColumns& columns,
                               std::span<float> cells);
void sketch_estimate(std::span<const float> cells, const SketchRows& sketch,
                     std::uint64_t first_block, std::span<float> estimates);
}  // namespace reference

}  // namespace thinreduce::kernels

// Entropy coder for small alphabets: the bits per symbol approach the entropy of the symbols.
//
// Interleaved rANS. Symbols are coded in groups of as many as fit in a byte (5 symbols of 3 kinds,
// 2 of up to 16). A table of the groups' frequencies comes first, then eight coders take turns at
// the groups. docs/wire-format.md specifies the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "thinreduce/kernels/rans.h"

namespace thinreduce {

// With fewer symbols the table costs more than the coder saves.
inline constexpr std::size_t kMinEntropySymbols = 256;

class EntropyCoder {
 public:
  // Symbols are 0 to alphabet-1; the alphabet must have 2 to 256 symbols.
  explicit EntropyCoder(std::uint32_t alphabet);

  // Appends the coded symbols to `out` and returns true, unless they would take `limit` bytes or
  // more.
  [[nodiscard]] bool encode(std::span<const std::uint8_t> symbols, std::size_t limit,
                            std::vector<std::byte>& out);

  // Fills `symbols` from all of `bytes`. Throws Error{bad_frame}, which names the bytes `what`, if
  // encode() cannot have written them for this many symbols.
  void decode(std::span<const std::byte> bytes, std::string_view what,
              std::span<std::uint8_t> symbols);

 private:
  struct Frequency {
    std::uint32_t start = 0;
    std::uint32_t count = 0;
  };

  [[nodiscard]] std::size_t groups_of(std::size_t symbols) const {
    return (symbols + group_ - 1) / group_;
  }
  void make_groups(std::span<const std::uint8_t> symbols);
  void count_groups();
  void make_frequencies();
  void write_table(std::vector<std::byte>& out) const;
  void read_table(std::span<const std::byte>& bytes, std::string_view what);
  [[nodiscard]] std::span<const std::uint16_t> encode_groups(kernels::RansStates& states);
  void expand(std::span<std::uint8_t> symbols) const;

  std::uint32_t alphabet_;
  std::size_t group_;  // symbols per group
  std::uint64_t group_factor_ = 0;
  std::uint32_t kinds_ = 1;  // number of different groups
  std::vector<std::uint8_t> groups_;
  std::vector<std::uint32_t> counts_;
  std::vector<Frequency> frequencies_;
  std::vector<kernels::RansEntry> entries_;
  std::vector<std::uint16_t> words_;    // filled from the end
  std::vector<std::uint32_t> slots_;    // of the decoder: group, frequency, place in it
  std::vector<std::uint64_t> symbols_;  // of each group, one symbol per byte
};

}  // namespace thinreduce

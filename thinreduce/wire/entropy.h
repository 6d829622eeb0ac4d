// Entropy coder for small alphabets: as many bits a symbol as the symbols' frequencies call for.
//
// Interleaved rANS. Symbols are taken in groups, as many as fit in a byte (5 of 3, 2 of up to 16),
// a table of the groups' frequencies goes first, and eight coders take turns at the groups.
// docs/wire-format.md specifies the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace thinreduce {

// Below this many symbols the table weighs more than it saves.
inline constexpr std::size_t kLeastEntropySymbols = 256;

class EntropyCoder {
 public:
  // Symbols are 0 to alphabet-1; alphabet from 2 to 256.
  explicit EntropyCoder(std::uint32_t alphabet);

  // Appends the coded symbols to `out`, unless they would take `limit` bytes or more; says whether
  // it did.
  [[nodiscard]] bool encode(std::span<const std::uint8_t> symbols, std::size_t limit,
                            std::vector<std::byte>& out);

  // Fills `symbols` from all of `bytes`. Throws Error{bad_frame}, in which `what` names the bytes,
  // when they are not what encode() writes for so many symbols.
  void decode(std::span<const std::byte> bytes, std::string_view what,
              std::span<std::uint8_t> symbols);

 private:
  struct Frequency {
    std::uint32_t start = 0;
    std::uint32_t count = 0;
  };
  // How to encode a group, with a multiplication in the place of a division.
  struct EncodeStep {
    std::uint32_t most = 0;  // states from here on give off 16 bits first
    std::uint32_t reciprocal = 0;
    std::uint32_t bias = 0;
    std::uint16_t complement = 0;
    std::uint16_t shift = 0;
  };

  [[nodiscard]] std::size_t groups_of(std::size_t symbols) const {
    return (symbols + group_ - 1) / group_;
  }
  void make_groups(std::span<const std::uint8_t> symbols);
  void count_groups();
  void make_frequencies();
  void write_table(std::vector<std::byte>& out) const;
  void read_table(std::span<const std::byte>& bytes, std::string_view what);
  [[nodiscard]] std::span<const std::uint16_t> encode_groups(std::span<std::uint32_t> states);
  void expand(std::span<std::uint8_t> symbols) const;

  std::uint32_t alphabet_;
  std::size_t group_;        // symbols in a group
  std::uint32_t kinds_ = 1;  // groups that differ
  std::vector<std::uint8_t> groups_;
  std::vector<std::uint32_t> counts_;
  std::vector<Frequency> frequencies_;
  std::vector<EncodeStep> steps_;
  std::vector<std::uint16_t> words_;    // filled from the end
  std::vector<std::uint32_t> slots_;    // of the decoder: group, frequency, place in it
  std::vector<std::uint64_t> symbols_;  // of a group, one a byte
};

}  // namespace thinreduce

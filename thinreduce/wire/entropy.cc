#include "thinreduce/wire/entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "thinreduce/ensure.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using kernels::kRansMinState;
using kernels::kRansScale;
using kernels::kRansScaleBits;
using kernels::kRansWays;
using kernels::RansStates;

[[noreturn]] void refuse(std::string_view what, const std::string& why) {
  throw Error(ErrorCode::bad_frame, fmt::format("{}: {}", what, why));
}

std::uint32_t slot_entry(std::uint32_t group, std::uint32_t count, std::uint32_t place) {
  return group | (count - 1) << 8 | place << 20;
}

}  // namespace

EntropyCoder::EntropyCoder(std::uint32_t alphabet) : alphabet_(alphabet), group_(0) {
  ensure(alphabet >= 2 && alphabet <= 256,
         "the entropy coder's alphabet must have 2 to 256 symbols", alphabet);
  for (; kinds_ * alphabet <= 256; ++group_) kinds_ *= alphabet;
  counts_.resize(kinds_);
  frequencies_.resize(kinds_);
  // A group is a byte: none, not even one made of symbols outside the alphabet, is past the end.
  entries_.resize(256);
  slots_.resize(kRansScale);
  symbols_.resize(kinds_);
  for (std::uint32_t weight = 1, i = 0; i < group_; ++i, weight *= alphabet) {
    group_factor_ |= static_cast<std::uint64_t>(weight) << (8 * (group_ - 1 - i));
  }
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    std::uint32_t rest = kind;
    for (std::size_t i = 0; i < group_; ++i, rest /= alphabet) {
      symbols_[kind] |= static_cast<std::uint64_t>(rest % alphabet) << (8 * i);
    }
  }
}

// The first symbol is the least significant digit; the last group is filled with zeros. With the
// symbols of a group in the bytes of a word, byte group_ - 1 of its product with group_factor_ is
// the sum of all symbols times their weights; no byte below it exceeds 255 and carries.
void EntropyCoder::make_groups(std::span<const std::uint8_t> symbols) {
  groups_.resize(groups_of(symbols.size()));
  if (group_ == 1) {
    std::ranges::copy(symbols, groups_.begin());
    return;
  }
  const std::size_t group = group_;
  const std::uint64_t factor = group_factor_;
  const std::size_t shift = 8 * (group - 1);
  const std::uint8_t* const in = symbols.data();
  std::uint8_t* const out = groups_.data();
  std::size_t i = 0;
  std::size_t at = 0;
  std::uint64_t word = 0;
  for (; at + sizeof(word) <= symbols.size(); ++i, at += group) {
    std::memcpy(&word, in + at, sizeof(word));
    out[i] = static_cast<std::uint8_t>(word * factor >> shift);
  }
  for (; at < symbols.size(); ++i, at += group) {
    word = 0;
    std::memcpy(&word, in + at, std::min(group, symbols.size() - at));
    out[i] = static_cast<std::uint8_t>(word * factor >> shift);
  }
}

// Four counters per group, so that runs of equal groups do not wait for one another.
void EntropyCoder::count_groups() {
  std::array<std::array<std::uint32_t, 256>, 4> parts{};
  std::size_t i = 0;
  const std::uint8_t* const groups = groups_.data();
  for (; i + 4 <= groups_.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++parts[j][groups[i + j]];
  }
  for (; i < groups_.size(); ++i) ++parts[0][groups_[i]];
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    counts_[kind] = parts[0][kind] + parts[1][kind] + parts[2][kind] + parts[3][kind];
  }
}

// Rounds to fractions of kRansScale, at least 1 for each group that occurs; the largest frequencies
// absorb the rounding error, where it matters least.
void EntropyCoder::make_frequencies() {
  const auto total = static_cast<std::uint64_t>(groups_.size());
  std::int64_t left = kRansScale;
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    const std::uint64_t count = counts_[kind];
    frequencies_[kind].count =
        count == 0 ? 0
                   : std::max<std::uint32_t>(
                         1, static_cast<std::uint32_t>((count * kRansScale + total / 2) / total));
    left -= frequencies_[kind].count;
  }
  const auto smaller = [](const Frequency& a, const Frequency& b) { return a.count < b.count; };
  for (; left != 0; left += left > 0 ? -1 : 1) {
    auto& largest = *std::max_element(frequencies_.begin(), frequencies_.end(), smaller);
    largest.count += left > 0 ? 1 : -1;
  }
  std::uint32_t start = 0;
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    auto& frequency = frequencies_[kind];
    frequency.start = start;
    start += frequency.count;
    if (frequency.count > 0) entries_[kind] = kernels::rans_entry(frequency.start, frequency.count);
  }
}

// Most kinds are rare and short in this code, which matters in short messages.
void EntropyCoder::write_table(std::vector<std::byte>& out) const {
  BitWriter bits(out);
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    const std::uint32_t value = frequencies_[kind].count + 1;
    const auto low = static_cast<unsigned>(std::bit_width(value) - 1);
    bits.put_unary(low);
    bits.put(value - (1u << low), low);
  }
  bits.finish();
}

// Encodes backwards, so that the decoder goes forwards.
std::span<const std::uint16_t> EntropyCoder::encode_groups(RansStates& states) {
  words_.resize(std::max(words_.size(), groups_.size() + kernels::kRansRoom));
  states.fill(kRansMinState);
  const std::size_t written =
      kernels::rans_encode(std::span(entries_).first<256>(), groups_, states, words_);
  return std::span(words_).last(written);
}

bool EntropyCoder::encode(std::span<const std::uint8_t> symbols, std::size_t limit,
                          std::vector<std::byte>& out) {
  if (symbols.size() < kMinEntropySymbols) return false;
  make_groups(symbols);
  count_groups();
  make_frequencies();
  double bits = 0;
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    bits += 2 * std::bit_width(frequencies_[kind].count + 1) - 1;  // in the table
    if (counts_[kind] == 0) continue;
    bits += counts_[kind] * (kRansScaleBits - std::log2(frequencies_[kind].count));
  }
  if (bits / 8 >= static_cast<double>(limit)) return false;

  const std::size_t before = out.size();
  write_table(out);
  RansStates states;
  const auto words = encode_groups(states);
  const auto append = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(states)));
  append(std::as_bytes(words));
  if (out.size() - before >= limit) {
    out.resize(before);
    return false;
  }
  return true;
}

void EntropyCoder::read_table(std::span<const std::byte>& bytes, std::string_view what) {
  BitReader reader(bytes);
  std::uint32_t start = 0;
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    const std::uint64_t low = reader.take_unary(kRansScaleBits);
    if (low > kRansScaleBits || reader.bits_read() > bytes.size() * 8) {
      refuse(what, fmt::format("the table is cut or wrong at group {} of {}", kind, kinds_));
    }
    const auto bits = static_cast<unsigned>(low);
    const auto count = static_cast<std::uint32_t>((1u << bits) + reader.take(bits) - 1);
    if (count > kRansScale - start) {
      refuse(what, fmt::format("the frequencies add up to {} or more, not {}", start + count,
                               kRansScale));
    }
    for (std::uint32_t place = 0; place < count; ++place) {
      slots_[start + place] = slot_entry(kind, count, place);
    }
    start += count;
  }
  if (start != kRansScale)
    refuse(what, fmt::format("the frequencies add up to {}, not {}", start, kRansScale));
  const std::size_t table = (reader.bits_read() + 7) / 8;
  if (table > bytes.size()) refuse(what, "the table is cut");
  if (reader.take(static_cast<unsigned>(table * 8 - reader.bits_read())) != 0) {
    refuse(what, "the table must end with zeros");
  }
  bytes = bytes.subspan(table);
}

// Writes the symbols of groups_, eight bytes at a time except near the end.
void EntropyCoder::expand(std::span<std::uint8_t> symbols) const {
  std::size_t at = 0;
  std::size_t i = 0;
  for (; at + sizeof(std::uint64_t) <= symbols.size(); ++i, at += group_) {
    std::memcpy(&symbols[at], &symbols_[groups_[i]], sizeof(std::uint64_t));
  }
  for (; at < symbols.size(); ++i, at += group_) {
    std::memcpy(&symbols[at], &symbols_[groups_[i]], std::min(group_, symbols.size() - at));
  }
}

void EntropyCoder::decode(std::span<const std::byte> bytes, std::string_view what,
                          std::span<std::uint8_t> symbols) {
  read_table(bytes, what);
  RansStates state;
  if (bytes.size() < sizeof(state) || (bytes.size() - sizeof(state)) % sizeof(std::uint16_t) != 0) {
    refuse(what, fmt::format("{} bytes after the table are too few for the states", bytes.size()));
  }
  std::memcpy(state.data(), bytes.data(), sizeof(state));
  for (const auto one : state) {
    if (one < kRansMinState || one >> 31 != 0)
      refuse(what, fmt::format("{} is not a valid state", one));
  }
  const std::byte* from = bytes.data() + sizeof(state);
  const std::byte* const end = bytes.data() + bytes.size();
  // A group of one symbol is that symbol.
  if (group_ > 1) groups_.resize(groups_of(symbols.size()));
  std::uint8_t* const groups = group_ > 1 ? groups_.data() : symbols.data();
  const std::size_t count = groups_of(symbols.size());
  const std::uint32_t* const slots = slots_.data();
  // Returns the group of the state; the state may then have to read 16 bits.
  const auto take_group = [&](std::uint32_t& x) {
    const std::uint32_t slot = slots[x % kRansScale];
    x = ((slot >> 8 & (kRansScale - 1)) + 1) * (x >> kRansScaleBits) + (slot >> 20);
    return static_cast<std::uint8_t>(slot);
  };
  std::size_t i = 0;
  // While 16 bits are left for every state.
  for (; i + kRansWays <= count &&
         end - from >= static_cast<std::ptrdiff_t>(kRansWays * sizeof(std::uint16_t));
       i += kRansWays) {
    for (std::size_t way = 0; way < kRansWays; ++way) {
      std::uint32_t& x = state[way];
      groups[i + way] = take_group(x);
      std::uint16_t word;
      std::memcpy(&word, from, sizeof(word));
      // Arithmetic, not a branch: a branch would be unpredictable.
      const std::uint32_t low = x < kRansMinState ? 1 : 0;
      from += low * sizeof(word);
      x = x << (16 * low) | (word & (0 - low));
    }
  }
  for (; i < count; ++i) {
    std::uint32_t& x = state[i % kRansWays];
    groups[i] = take_group(x);
    if (x >= kRansMinState) continue;
    if (from == end) refuse(what, fmt::format("is cut in group {} of {}", i, count));
    std::uint16_t word;
    std::memcpy(&word, from, sizeof(word));
    from += sizeof(word);
    x = x << 16 | word;
  }
  // The decoder must end in the state in which the encoder began.
  for (const auto one : state) {
    if (one != kRansMinState)
      refuse(what, fmt::format("ends in the state {}, not in the first one", one));
  }
  if (from != end) refuse(what, fmt::format("{} bytes too many", end - from));
  if (group_ > 1) expand(symbols);
}

}  // namespace thinreduce

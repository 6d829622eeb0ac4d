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

// Frequencies are fractions of 2^12: the decoder's table fits in the L1 cache, and the rounding
// costs far less than a hundredth of the size.
constexpr std::uint32_t kScaleBits = 12;
constexpr std::uint32_t kScale = 1u << kScaleBits;
// States stay in [2^15, 2^31) and read or emit 16 bits at a time.
constexpr std::uint32_t kMinState = 1u << 15;
// This many independent chains keep a core busy.
constexpr std::size_t kWays = 8;

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
  slots_.resize(kScale);
  symbols_.resize(kinds_);
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    std::uint32_t rest = kind;
    for (std::size_t i = 0; i < group_; ++i, rest /= alphabet) {
      symbols_[kind] |= static_cast<std::uint64_t>(rest % alphabet) << (8 * i);
    }
  }
}

// The first symbol is the least significant digit; the last group is filled with zeros.
void EntropyCoder::make_groups(std::span<const std::uint8_t> symbols) {
  groups_.resize(groups_of(symbols.size()));
  const std::size_t whole = symbols.size() / group_;
  const std::uint8_t* in = symbols.data();
  std::uint8_t* const out = groups_.data();
  const std::size_t group = group_;
  const auto alphabet = static_cast<std::uint8_t>(alphabet_);
  switch (group) {
    case 1:
      std::copy(symbols.begin(), symbols.end(), groups_.begin());
      return;
    case 2:
      for (std::size_t i = 0; i < whole; ++i, in += 2) {
        out[i] = static_cast<std::uint8_t>(in[0] + alphabet * in[1]);
      }
      break;
    default:
      for (std::size_t i = 0; i < whole; ++i, in += group) {
        std::uint32_t value = 0;
        for (std::size_t j = group; j-- > 0;) value = value * alphabet + in[j];
        out[i] = static_cast<std::uint8_t>(value);
      }
  }
  if (whole < groups_.size()) {
    std::uint32_t value = 0;
    for (std::size_t j = symbols.size() - whole * group_; j-- > 0;) {
      value = value * alphabet_ + in[j];
    }
    groups_[whole] = static_cast<std::uint8_t>(value);
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

// Rounds to fractions of kScale, at least 1 for each group that occurs; the largest frequencies
// absorb the rounding error, where it matters least.
void EntropyCoder::make_frequencies() {
  const auto total = static_cast<std::uint64_t>(groups_.size());
  std::int64_t left = kScale;
  for (std::uint32_t kind = 0; kind < kinds_; ++kind) {
    const std::uint64_t count = counts_[kind];
    frequencies_[kind].count =
        count == 0 ? 0
                   : std::max<std::uint32_t>(
                         1, static_cast<std::uint32_t>((count * kScale + total / 2) / total));
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
    if (frequency.count == 0) continue;
    // x / count = x * reciprocal >> 32 + shift, for every x below 2^31.
    EncodeEntry& entry = entries_[kind];
    entry.most = frequency.count << (31 - kScaleBits);
    entry.complement = static_cast<std::uint16_t>(kScale - frequency.count);
    if (frequency.count == 1) {
      // A reciprocal of 2^32 - 1 gives a quotient of x - 1; the bias corrects it.
      entry.reciprocal = 0xffffffff;
      entry.shift = 0;
      entry.bias = frequency.start + kScale - 1;
    } else {
      const auto bits = static_cast<std::uint32_t>(std::bit_width(frequency.count - 1));
      entry.reciprocal = static_cast<std::uint32_t>(
          ((std::uint64_t{1} << (bits + 31)) + frequency.count - 1) / frequency.count);
      entry.shift = static_cast<std::uint16_t>(bits - 1);
      entry.bias = frequency.start;
    }
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

// Encodes backwards, so that the decoder goes forwards. A state always writes its lower half and
// advances only if it was too large: there is no unpredictable branch.
std::span<const std::uint16_t> EntropyCoder::encode_groups(std::span<std::uint32_t> states) {
  words_.resize(std::max(words_.size(), groups_.size() + 1));
  std::uint16_t* const end = words_.data() + words_.size();
  std::uint16_t* to = end;
  // Local copies of the pointers: a store cannot alias them.
  const EncodeEntry* const entries = entries_.data();
  const std::uint8_t* const groups = groups_.data();
  const auto put = [&](std::uint32_t& state, std::uint8_t group) {
    const EncodeEntry entry = entries[group];
    to[-1] = static_cast<std::uint16_t>(state);
    const std::uint32_t full = state >= entry.most ? 1 : 0;
    to -= full;
    const std::uint32_t x = state >> (16 * full);
    const auto quotient =
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) * entry.reciprocal >> 32) >>
        entry.shift;
    state = x + entry.bias + quotient * entry.complement;
  };
  std::array<std::uint32_t, kWays> state;
  state.fill(kMinState);
  std::size_t i = groups_.size();
  for (; i % kWays != 0; --i) put(state[(i - 1) % kWays], groups[i - 1]);
  for (; i > 0; i -= kWays) {
    for (std::size_t way = kWays; way-- > 0;) put(state[way], groups[i - kWays + way]);
  }
  std::copy(state.begin(), state.end(), states.begin());
  return {to, end};
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
    bits += counts_[kind] * (kScaleBits - std::log2(frequencies_[kind].count));
  }
  if (bits / 8 >= static_cast<double>(limit)) return false;

  const std::size_t before = out.size();
  write_table(out);
  std::array<std::uint32_t, kWays> states;
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
    const std::uint64_t low = reader.take_unary(kScaleBits);
    if (low > kScaleBits || reader.bits_read() > bytes.size() * 8) {
      refuse(what, fmt::format("the table is cut or wrong at group {} of {}", kind, kinds_));
    }
    const auto bits = static_cast<unsigned>(low);
    const auto count = static_cast<std::uint32_t>((1u << bits) + reader.take(bits) - 1);
    if (count > kScale - start) {
      refuse(what,
             fmt::format("the frequencies add up to {} or more, not {}", start + count, kScale));
    }
    for (std::uint32_t place = 0; place < count; ++place) {
      slots_[start + place] = slot_entry(kind, count, place);
    }
    start += count;
  }
  if (start != kScale)
    refuse(what, fmt::format("the frequencies add up to {}, not {}", start, kScale));
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
  std::array<std::uint32_t, kWays> state;
  if (bytes.size() < sizeof(state) || (bytes.size() - sizeof(state)) % sizeof(std::uint16_t) != 0) {
    refuse(what, fmt::format("{} bytes after the table are too few for the states", bytes.size()));
  }
  std::memcpy(state.data(), bytes.data(), sizeof(state));
  for (const auto one : state) {
    if (one < kMinState || one >> 31 != 0)
      refuse(what, fmt::format("{} is not a valid state", one));
  }
  const std::byte* from = bytes.data() + sizeof(state);
  const std::byte* const end = bytes.data() + bytes.size();
  groups_.resize(groups_of(symbols.size()));

  const std::uint32_t* const slots = slots_.data();
  std::uint8_t* const groups = groups_.data();
  const std::size_t count = groups_.size();
  // Returns the group of the state; the state may then have to read 16 bits.
  const auto take_group = [&](std::uint32_t& x) {
    const std::uint32_t slot = slots[x % kScale];
    x = ((slot >> 8 & (kScale - 1)) + 1) * (x >> kScaleBits) + (slot >> 20);
    return static_cast<std::uint8_t>(slot);
  };
  std::size_t i = 0;
  // While 16 bits are left for every state.
  for (; i + kWays <= count &&
         end - from >= static_cast<std::ptrdiff_t>(kWays * sizeof(std::uint16_t));
       i += kWays) {
    for (std::size_t way = 0; way < kWays; ++way) {
      std::uint32_t& x = state[way];
      groups[i + way] = take_group(x);
      std::uint16_t word;
      std::memcpy(&word, from, sizeof(word));
      // Arithmetic, not a branch: a branch would be unpredictable.
      const std::uint32_t low = x < kMinState ? 1 : 0;
      from += low * sizeof(word);
      x = x << (16 * low) | (word & (0 - low));
    }
  }
  for (; i < groups_.size(); ++i) {
    std::uint32_t& x = state[i % kWays];
    groups_[i] = take_group(x);
    if (x >= kMinState) continue;
    if (from == end) refuse(what, fmt::format("is cut in group {} of {}", i, groups_.size()));
    std::uint16_t word;
    std::memcpy(&word, from, sizeof(word));
    from += sizeof(word);
    x = x << 16 | word;
  }
  // The decoder must end in the state in which the encoder began.
  for (const auto one : state) {
    if (one != kMinState)
      refuse(what, fmt::format("ends in the state {}, not in the first one", one));
  }
  if (from != end) refuse(what, fmt::format("{} bytes too many", end - from));
  expand(symbols);
}

}  // namespace thinreduce

#include "thinreduce/methods/fft/payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "thinreduce/error.h"
#include "thinreduce/kernels/bit_loops.h"
#include "thinreduce/methods/fft/pairs.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/rice.h"

namespace thinreduce {
namespace {

using kernels::kPairsPerWord;

constexpr std::size_t kHeaderBytes = 24;
// A strip's head: the number of kept pairs (up to 2048) in the low 12 bits, the encoding of their
// positions in the high 4: the number of low bits of a Rice code, or kAsBitmap.
using StripHead = std::uint16_t;
constexpr unsigned kCountBits = 12;
constexpr unsigned kMaxRice = 11;
constexpr unsigned kAsBitmap = 15;

std::size_t strips_of(std::size_t words) {
  return (words + kStripWords - 1) / kStripWords;
}

// The kept pairs of a strip, as the number of dropped pairs before each kept one.
struct Gaps {
  std::array<std::uint16_t, kStripPairs> dropped;
  std::size_t count = 0;
  std::size_t pairs = 0;  // of the strip

  [[nodiscard]] std::span<const std::uint16_t> all() const {
    return std::span(dropped).first(count);
  }
  [[nodiscard]] std::size_t rice_bits(unsigned low) const {
    std::uint32_t quotients = 0;
    for (const auto gap : all()) quotients += static_cast<std::uint32_t>(gap >> low);
    return quotients + count * (1 + low);
  }
};

// Finds the gaps of the strip that begins at a word. Subtracts whole runs of positions, without a
// sum that would have to wait for the one before it.
void find_gaps(const KeptPairs& kept, std::size_t first_word, Gaps& gaps) {
  const std::size_t words = std::min(kStripWords, kept.words - first_word);
  gaps.pairs = words * kPairsPerWord;
  gaps.count = 0;
  std::size_t next = 0;  // the lowest pair that may come
  for (std::size_t word = 0; word < words; word += kept.run_words) {
    const std::size_t run = (first_word + word) / kept.run_words;
    const std::size_t first = kept.firsts[run] - kept.firsts.front();
    const std::size_t count = kept.firsts[run + 1] - kept.firsts[run];
    if (count == 0) continue;
    const std::uint16_t* const position = &kept.positions[first];
    std::uint16_t* const gap = &gaps.dropped[gaps.count];
    gap[0] = static_cast<std::uint16_t>(word * kPairsPerWord + position[0] - next);
    for (std::size_t i = 1; i < count; ++i) {
      gap[i] = static_cast<std::uint16_t>(position[i] - position[i - 1] - 1);
    }
    next = word * kPairsPerWord + position[count - 1] + 1;
    gaps.count += count;
  }
}

struct RiceCost {
  unsigned low = 0;
  std::size_t bits = 0;
};
// Returns the best number of low bits, which is near the logarithm of the mean gap.
RiceCost best_rice(const Gaps& gaps) {
  const std::size_t mean = (gaps.pairs - gaps.count) / gaps.count;
  const auto middle = static_cast<unsigned>(std::bit_width(mean));
  unsigned low = std::min(middle, kMaxRice);
  RiceCost best{low, gaps.rice_bits(low)};
  while (low > 0 && low + 2 > middle) {
    --low;
    const std::size_t bits = gaps.rice_bits(low);
    if (bits < best.bits) best = {low, bits};
  }
  return best;
}

void write_bitmap(const Gaps& gaps, BitWriter& writer) {
  std::array<std::uint64_t, kStripWords> bitmap{};
  std::size_t pair = 0;
  for (const std::size_t gap : gaps.all()) {
    pair += gap;
    bitmap[pair / kPairsPerWord] |= std::uint64_t{1} << (pair % kPairsPerWord);
    ++pair;
  }
  for (const std::uint64_t word : std::span(bitmap).first(gaps.pairs / kPairsPerWord)) {
    writer.put(word & 0xffffffff, 32);
    writer.put(word >> 32, 32);
  }
}

StripHead write_strip(const Gaps& gaps, BitWriter& writer) {
  const auto head = [&](unsigned way) {
    return static_cast<StripHead>(gaps.count | way << kCountBits);
  };
  if (gaps.count == 0) return head(0);
  const RiceCost rice = best_rice(gaps);
  if (rice.bits >= gaps.pairs) {
    write_bitmap(gaps, writer);
    return head(kAsBitmap);
  }
  put_rice(writer, gaps.all(), rice.low, rice.bits);
  return head(rice.low);
}

// Reads the positions of a strip of `pairs` pairs. Returns an error text, empty on success.
std::string read_strip(StripHead head, std::size_t pairs, BitReader& reader,
                       std::span<std::uint16_t> positions) {
  const unsigned low = head >> kCountBits;
  if (low == kAsBitmap) {
    std::array<std::uint64_t, kStripWords> bitmap{};
    const auto words = std::span(bitmap).first(pairs / kPairsPerWord);
    for (std::uint64_t& word : words) {
      word = reader.take(32);
      word |= reader.take(32) << 32;
    }
    const std::size_t set = kernels::count_pairs(words);
    if (set != positions.size()) {
      return fmt::format("the bitmap marks {} pairs, the strip head says {}", set,
                         positions.size());
    }
    std::size_t next = 0;
    kernels::for_pairs(
        words, [&](std::size_t pair) { positions[next++] = static_cast<std::uint16_t>(pair); });
    return {};
  }
  if (low > kMaxRice) return fmt::format("unknown encoding {} of positions", low);
  RiceReader rice(reader, low, pairs >> low);
  std::array<std::uint64_t, RiceReader::kBatch> gaps{};
  std::uint64_t next = 0;  // the lowest position that may come
  for (std::size_t i = 0; i < positions.size(); i += gaps.size()) {
    const auto batch = positions.subspan(i, std::min(gaps.size(), positions.size() - i));
    rice.take(std::span(gaps).first(batch.size()));
    for (std::size_t k = 0; k < batch.size(); ++k) {
      next += gaps[k];
      batch[k] = static_cast<std::uint16_t>(next++);
    }
    if (next > pairs) return fmt::format("a position lies past the last of {} pairs", pairs);
  }
  rice.finish();
  return {};
}

// Reads and checks the fixed fields at the start of a payload.
template <typename Refuse>
SpectrumHead read_head(ByteReader& reader, int bits, Refuse&& refuse, std::size_t& kept) {
  SpectrumHead head;
  kept = reader.value<std::uint32_t>();
  kernels::RangeFloat& format = head.format;
  format.bits = reader.value<std::uint8_t>();
  format.mantissa = reader.value<std::uint8_t>();
  const auto reserved = reader.value<std::uint16_t>();
  format.base = reader.value<std::uint32_t>();
  format.positive = reader.value<std::uint32_t>();
  format.negative = reader.value<std::uint32_t>();
  head.kept_energy = reader.value<float>();
  if (format.bits != bits)
    refuse(fmt::format("codes have {} bits, expected {}", format.bits, bits));
  if (reserved != 0) refuse(fmt::format("a reserved field is {} and must be 0", reserved));
  if (!format.valid()) {
    refuse(
        fmt::format("invalid range float: mantissa {}, base {}, {} positive and {} negative codes",
                    format.mantissa, format.base, format.positive, format.negative));
  }
  if (format.largest() > kMaxCoefficient) {
    refuse(
        fmt::format("coefficients reach {}, the maximum is {}", format.largest(), kMaxCoefficient));
  }
  if (!(head.kept_energy >= 0 && head.kept_energy <= 1)) {
    refuse(fmt::format("the kept fraction of energy is {}, not between 0 and 1", head.kept_energy));
  }
  return head;
}

}  // namespace

std::size_t fft_payload_limit(const PayloadShape& shape) {
  return kHeaderBytes + strips_of(shape.words) * sizeof(StripHead) +
         shape.words * sizeof(std::uint64_t) +
         packed_bytes(2 * kPairsPerWord * shape.words, static_cast<unsigned>(shape.bits));
}

void write_fft_payload(const SpectrumHead& head, const KeptPairs& pairs,
                       std::vector<std::byte>& payload) {
  payload.clear();
  if (head.overflow) return payload.resize(kHeaderBytes);
  if (pairs.codes.empty()) return;
  const auto& format = head.format;
  payload.resize(kHeaderBytes + strips_of(pairs.words) * sizeof(StripHead));
  store_value(std::span(payload), 0, static_cast<std::uint32_t>(pairs.codes.size() / 2));
  store_value(std::span(payload), 4, static_cast<std::uint8_t>(format.bits));
  store_value(std::span(payload), 5, static_cast<std::uint8_t>(format.mantissa));
  store_value(std::span(payload), 6, std::uint16_t{0});
  store_value(std::span(payload), 8, format.base);
  store_value(std::span(payload), 12, format.positive);
  store_value(std::span(payload), 16, format.negative);
  store_value(std::span(payload), 20, head.kept_energy);
  Gaps gaps;
  BitWriter writer(payload);
  for (std::size_t first = 0; first < pairs.words; first += kStripWords) {
    find_gaps(pairs, first, gaps);
    const StripHead written = write_strip(gaps, writer);
    store_value(std::span(payload), kHeaderBytes + first / kStripWords * sizeof(written), written);
  }
  writer.finish();
  pack_codes(pairs.codes, static_cast<unsigned>(format.bits), payload);
}

void read_fft_payload(std::span<const std::byte> payload, const PayloadShape& shape, int rank,
                      SparseSpectrum& spectrum) {
  const std::size_t strips = strips_of(shape.words);
  const std::size_t all_pairs = shape.words * kPairsPerWord;
  if (payload.empty()) {
    spectrum.head = {};
    spectrum.counts.assign(strips, 0);
    spectrum.positions.clear();
    spectrum.codes.clear();
    return;
  }
  const std::string what = fmt::format("FFT payload of rank {}", rank);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_frame, fmt::format("{}: {}", what, why));
  };
  if (payload.size() == kHeaderBytes) {
    throw Error::overflow(what + ": its gradient plus residual overflowed in the transform");
  }
  ByteReader reader(payload, what);
  std::size_t kept = 0;
  spectrum.head = read_head(reader, shape.bits, refuse, kept);
  if (kept == 0 || kept > all_pairs) refuse(fmt::format("keeps {} of {} pairs", kept, all_pairs));

  const auto heads = reader.take(strips * sizeof(StripHead));
  const std::size_t code_bytes = packed_bytes(2 * kept, static_cast<unsigned>(shape.bits));
  if (reader.left() < code_bytes) {
    refuse(fmt::format("is cut: {} bytes are left for {} codes", reader.left(), 2 * kept));
  }
  const auto position_bytes = reader.take(reader.left() - code_bytes);
  BitReader bits(position_bytes);
  spectrum.counts.resize(strips);
  spectrum.positions.resize(kept);
  const std::span positions(spectrum.positions);
  std::size_t found = 0;
  for (std::size_t strip = 0; strip < strips; ++strip) {
    const auto head = load_value<StripHead>(heads, strip * sizeof(StripHead));
    const std::size_t count = head & ((1u << kCountBits) - 1);
    const std::size_t pairs = std::min(kStripPairs, all_pairs - strip * kStripPairs);
    if (count > pairs) refuse(fmt::format("strip {}: keeps {} of {} pairs", strip, count, pairs));
    if (count > kept - found)
      refuse(fmt::format("the strips keep more than the {} pairs announced", kept));
    const auto wrong = read_strip(head, pairs, bits, positions.subspan(found, count));
    if (!wrong.empty()) refuse(fmt::format("strip {}: {}", strip, wrong));
    spectrum.counts[strip] = static_cast<std::uint16_t>(count);
    found += count;
  }
  if (found != kept)
    refuse(fmt::format("the strips keep {} pairs, {} were announced", found, kept));
  if ((bits.bits_read() + 7) / 8 != position_bytes.size()) {
    refuse(fmt::format("positions take {} bits, but {} bytes were sent", bits.bits_read(),
                       position_bytes.size()));
  }
  spectrum.codes.resize(2 * kept);
  const std::uint32_t largest =
      unpack_codes(reader.take(code_bytes), static_cast<unsigned>(shape.bits), spectrum.codes);
  if (largest > spectrum.head.format.last_code()) {
    refuse(
        fmt::format("code {}, where the largest is {}", largest, spectrum.head.format.last_code()));
  }
}

}  // namespace thinreduce

#include "thinreduce/methods/fft_payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "thinreduce/error.h"
#include "thinreduce/kernels/units.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using kernels::kUnitsPerWord;

constexpr std::size_t kHeaderBytes = 24;
// A segment has one way to write its positions. Short enough to follow a density that changes, long
// enough that its two bytes do not count.
constexpr std::size_t kSegmentWords = 32;
constexpr std::size_t kSegmentUnits = kSegmentWords * kUnitsPerWord;
// A segment's head: how many units are kept in the low 12 bits (2048 fits), how they are written in
// the high 4: the number of low bits of a Rice code, or a bitmap.
using SegmentHead = std::uint16_t;
constexpr unsigned kCountBits = 12;
constexpr unsigned kMostRice = 11;
constexpr unsigned kAsBitmap = 15;

std::size_t segments_of(std::size_t words) {
  return (words + kSegmentWords - 1) / kSegmentWords;
}

// The number of units skipped before each kept one.
struct Gaps {
  std::array<std::uint16_t, kSegmentUnits> skipped;
  std::size_t count = 0;

  [[nodiscard]] std::span<const std::uint16_t> all() const {
    return std::span(skipped).first(count);
  }
  [[nodiscard]] std::size_t rice_bits(unsigned low) const {
    std::size_t quotients = 0;
    for (const auto gap : all()) quotients += static_cast<std::size_t>(gap >> low);
    return quotients + count * (1 + low);
  }
};

void find_gaps(std::span<const std::uint64_t> words, Gaps& gaps) {
  std::size_t next = 0;
  gaps.count = 0;
  kernels::for_units(words, [&](std::size_t unit) {
    gaps.skipped[gaps.count++] = static_cast<std::uint16_t>(unit - next);
    next = unit + 1;
  });
}

// The best number of low bits is near the logarithm of the mean gap.
unsigned best_rice(const Gaps& gaps, std::size_t units) {
  const std::size_t mean = (units - gaps.count) / gaps.count;
  const auto middle = static_cast<unsigned>(std::bit_width(mean));
  unsigned best = std::min(middle, kMostRice);
  std::size_t least = gaps.rice_bits(best);
  for (unsigned low = best; low > 0 && low + 2 > middle;) {
    --low;
    const std::size_t bits = gaps.rice_bits(low);
    if (bits >= least) continue;
    least = bits;
    best = low;
  }
  return best;
}

SegmentHead write_segment(std::span<const std::uint64_t> words, Gaps& gaps, BitWriter& writer) {
  find_gaps(words, gaps);
  const auto head = [&](unsigned way) {
    return static_cast<SegmentHead>(gaps.count | way << kCountBits);
  };
  if (gaps.count == 0) return head(0);
  const std::size_t units = words.size() * kUnitsPerWord;
  const unsigned low = best_rice(gaps, units);
  if (gaps.rice_bits(low) >= units) {
    for (const std::uint64_t word : words) {
      writer.put(word & 0xffffffff, 32);
      writer.put(word >> 32, 32);
    }
    return head(kAsBitmap);
  }
  const unsigned mask = (1u << low) - 1;
  for (const unsigned gap : gaps.all()) {
    writer.put_unary(gap >> low);
    writer.put(gap & mask, low);
  }
  return head(low);
}

// Returns what is wrong with the segment; nothing if it is right.
std::string read_segment(SegmentHead head, BitReader& reader, std::span<std::uint64_t> words) {
  const std::size_t count = head & ((1u << kCountBits) - 1);
  const unsigned low = head >> kCountBits;
  const std::size_t units = words.size() * kUnitsPerWord;
  std::fill(words.begin(), words.end(), 0);
  if (count > units) return fmt::format("{} of {} units", count, units);
  if (low == kAsBitmap) {
    for (std::uint64_t& word : words) {
      word = reader.take(32);
      word |= reader.take(32) << 32;
    }
    const std::size_t set = kernels::count_units(words);
    if (set != count) return fmt::format("a bitmap of {} units instead of {}", set, count);
    return {};
  }
  if (low > kMostRice) return fmt::format("positions written in unknown way {}", low);
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next += reader.take_rice(low, units);
    if (next >= units) return fmt::format("position {} of {} units", next, units);
    words[next / kUnitsPerWord] |= std::uint64_t{1} << (next % kUnitsPerWord);
    ++next;
  }
  return {};
}

}  // namespace

std::size_t fft_payload_limit(std::size_t words, int bits) {
  return kHeaderBytes + segments_of(words) * sizeof(SegmentHead) + words * sizeof(std::uint64_t) +
         packed_bytes(2 * kUnitsPerWord * words, static_cast<unsigned>(bits));
}

void write_fft_payload(const SparseSpectrum& spectrum, std::vector<std::byte>& payload) {
  payload.clear();
  if (spectrum.overflow) return payload.resize(kHeaderBytes);
  if (spectrum.codes.empty()) return;
  const auto& format = spectrum.format;
  const std::span words(spectrum.bitmap);
  payload.resize(kHeaderBytes + segments_of(words.size()) * sizeof(SegmentHead));
  store_value(std::span(payload), 0, static_cast<std::uint32_t>(spectrum.codes.size() / 2));
  store_value(std::span(payload), 4, static_cast<std::uint8_t>(format.bits));
  store_value(std::span(payload), 5, static_cast<std::uint8_t>(format.mantissa));
  store_value(std::span(payload), 6, std::uint16_t{0});
  store_value(std::span(payload), 8, format.base);
  store_value(std::span(payload), 12, format.positive);
  store_value(std::span(payload), 16, format.negative);
  store_value(std::span(payload), 20, spectrum.kept_energy);
  Gaps gaps;
  BitWriter writer(payload);
  for (std::size_t first = 0; first < words.size(); first += kSegmentWords) {
    const auto segment = words.subspan(first, std::min(kSegmentWords, words.size() - first));
    const SegmentHead head = write_segment(segment, gaps, writer);
    store_value(std::span(payload), kHeaderBytes + first / kSegmentWords * sizeof(head), head);
  }
  writer.finish();
  pack_codes(spectrum.codes, static_cast<unsigned>(format.bits), payload);
}

void read_fft_payload(std::span<const std::byte> payload, int rank, int bits,
                      SparseSpectrum& spectrum) {
  const std::span<std::uint64_t> words(spectrum.bitmap);
  spectrum.codes.clear();
  spectrum.kept_energy = 1;
  if (payload.empty()) {
    std::fill(words.begin(), words.end(), 0);
    return;
  }
  const std::string what = fmt::format("FFT payload of rank {}", rank);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_frame, fmt::format("{}: {}", what, why));
  };
  if (payload.size() == kHeaderBytes) refuse("gradient and residual overflow in the transform");
  ByteReader reader(payload, what);
  const std::size_t kept = reader.value<std::uint32_t>();
  kernels::RangeFloat& format = spectrum.format;
  format.bits = reader.value<std::uint8_t>();
  format.mantissa = reader.value<std::uint8_t>();
  const auto reserved = reader.value<std::uint16_t>();
  format.base = reader.value<std::uint32_t>();
  format.positive = reader.value<std::uint32_t>();
  format.negative = reader.value<std::uint32_t>();
  spectrum.kept_energy = reader.value<float>();
  if (format.bits != bits) refuse(fmt::format("codes of {} bits instead of {}", format.bits, bits));
  if (reserved != 0) refuse(fmt::format("{} in a field that must be 0", reserved));
  if (!format.valid()) {
    refuse(fmt::format("no range float has mantissa {}, base {}, {} positive and {} negative codes",
                       format.mantissa, format.base, format.positive, format.negative));
  }
  if (format.largest() > kLargestCoefficient) {
    refuse(fmt::format("coefficients up to {}, {} is the limit", format.largest(),
                       kLargestCoefficient));
  }
  if (!(spectrum.kept_energy >= 0 && spectrum.kept_energy <= 1)) {
    refuse(fmt::format("a share of {} of the energy", spectrum.kept_energy));
  }
  if (kept == 0 || kept > words.size() * kUnitsPerWord) {
    refuse(fmt::format("{} of {} units", kept, words.size() * kUnitsPerWord));
  }

  const auto heads = reader.take(segments_of(words.size()) * sizeof(SegmentHead));
  const std::size_t code_bytes = packed_bytes(2 * kept, static_cast<unsigned>(bits));
  if (reader.left() < code_bytes) {
    refuse(fmt::format("is cut: {} bytes left for {} codes", reader.left(), 2 * kept));
  }
  const auto position_bytes = reader.take(reader.left() - code_bytes);
  BitReader positions(position_bytes);
  std::size_t found = 0;
  for (std::size_t segment = 0; segment < segments_of(words.size()); ++segment) {
    const std::size_t first = segment * kSegmentWords;
    const auto head = load_value<SegmentHead>(heads, segment * sizeof(SegmentHead));
    const auto wrong = read_segment(
        head, positions, words.subspan(first, std::min(kSegmentWords, words.size() - first)));
    if (!wrong.empty()) refuse(fmt::format("segment {}: {}", segment, wrong));
    found += head & ((1u << kCountBits) - 1);
  }
  if (found != kept) refuse(fmt::format("positions of {} units, codes of {}", found, kept));
  if ((positions.bits_read() + 7) / 8 != position_bytes.size()) {
    refuse(fmt::format("positions of {} bits in {} bytes", positions.bits_read(),
                       position_bytes.size()));
  }
  spectrum.codes.resize(2 * kept);
  const std::uint32_t largest =
      unpack_codes(reader.take(code_bytes), static_cast<unsigned>(bits), spectrum.codes);
  if (largest > format.last_code()) {
    refuse(fmt::format("code {} of {}", largest, format.last_code()));
  }
}

}  // namespace thinreduce

#include "thinreduce/methods/variance_payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "thinreduce/error.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Places = VarianceFormat::Places;

constexpr std::size_t kPartBytes = 8;
constexpr std::uint32_t kIndexBits = 28;
constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;

// What the values beside compact places take.
std::size_t value_bytes(Values values, std::size_t count) {
  switch (values) {
    case Values::nibble:
      return packed_bytes(count, 4);
    case Values::sign:
      return packed_bytes(count, 1);
    case Values::whole:
      break;
  }
  return count * sizeof(float);
}

// Low bits of a gap's Rice code: the gaps' mean is between 2^low and 2^(low + 1).
unsigned rice_bits(std::size_t elements, std::size_t count) {
  return count == 0 ? 0 : static_cast<unsigned>(std::bit_width(elements / count)) - 1;
}

void write_words(const VarianceSent& sent, std::span<const VarianceTensor> tensors,
                 std::span<std::byte> out) {
  std::size_t i = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto offset = static_cast<std::uint32_t>(tensors[t].offset);
    for (const std::size_t end = i + sent.parts[t].count; i < end; ++i) {
      const std::uint32_t code = sent.codes.empty() ? 0 : sent.codes[i];
      store_value(out, i * sizeof(std::uint32_t), code << kIndexBits | (sent.indices[i] - offset));
    }
  }
}

void write_codes(const VarianceSent& sent, Values values, std::vector<std::byte>& out) {
  BitWriter bits(out);
  for (const std::uint8_t code : sent.codes) {
    if (values == Values::nibble) {
      bits.put(code, 4);
    } else {
      bits.put(code >> 3U, 1);
    }
  }
  bits.finish();
}

void write_gaps(const VarianceSent& sent, std::span<const VarianceTensor> tensors,
                std::vector<std::byte>& out) {
  BitWriter bits(out);
  std::size_t i = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const unsigned low = rice_bits(tensors[t].elements, sent.parts[t].count);
    const std::uint64_t mask = (std::uint64_t{1} << low) - 1;
    std::uint64_t next = tensors[t].offset;
    for (const std::size_t end = i + sent.parts[t].count; i < end; ++i) {
      const std::uint64_t gap = sent.indices[i] - next;
      bits.put_unary(gap >> low);
      bits.put(gap & mask, low);
      next = std::uint64_t{sent.indices[i]} + 1;
    }
  }
  bits.finish();
}

// Without load_value's check: the loop around it has made sure.
std::uint32_t word_at(std::span<const std::byte> words, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, words.data() + i * sizeof(word), sizeof(word));
  return word;
}

// A tensor's part of a payload that nobody vouches for.
struct IncomingPart {
  std::size_t count = 0;
  std::uint32_t exponent = 0;
  unsigned low = 0;
};

// Reads one payload and adds it up. `what` names it in errors.
class Adder {
 public:
  Adder(const VarianceFormat& format, std::span<const VarianceTensor> tensors, int rank,
        float share, std::span<float> sum)
      : format_(format),
        tensors_(tensors),
        what_(fmt::format("variance payload of rank {}", rank)),
        share_(share),
        sum_(sum) {}

  void add(std::span<const std::byte> payload) {
    ByteReader reader(payload, what_);
    read_parts(reader.take(tensors_.size() * kPartBytes));
    if (format_.places == Places::words) {
      const auto words = reader.take(total_ * sizeof(std::uint32_t));
      const bool whole = format_.values == Values::whole;
      const auto values = reader.take(whole ? total_ * sizeof(float) : 0);
      reader.finish();
      add_words(words, values);
    } else {
      const auto values = reader.take(value_bytes(format_.values, total_));
      add_compact(values, reader.take(reader.left()));
    }
  }

 private:
  [[noreturn]] void refuse(std::size_t tensor, const std::string& why) const {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{}, compressed tensor {}: {}", what_, tensor, why));
  }

  void read_parts(std::span<const std::byte> bytes) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::size_t at = t * kPartBytes;
      IncomingPart part{.count = load_value<std::uint32_t>(bytes, at),
                        .exponent = load_value<std::uint8_t>(bytes, at + 4),
                        .low = load_value<std::uint8_t>(bytes, at + 5)};
      if (part.exponent > kMostExponent) {
        refuse(t, fmt::format("exponent {} of at most {}: its sums have overflowed", part.exponent,
                              kMostExponent));
      }
      if (part.count > tensors_[t].elements) {
        refuse(t, fmt::format("{} values for {} elements", part.count, tensors_[t].elements));
      }
      const bool common = format_.values == Values::nibble && part.count > 0;
      if (common != (part.exponent != 0)) {
        refuse(t, fmt::format("exponent {} for {} values", part.exponent, part.count));
      }
      const bool gaps = format_.places == Places::compact;
      if (part.low != (gaps ? rice_bits(tensors_[t].elements, part.count) : 0) ||
          load_value<std::uint16_t>(bytes, at + 6) != 0) {
        refuse(t, fmt::format("gaps of {} low bits, or a field that is not 0", part.low));
      }
      total_ += part.count;
      parts_.push_back(part);
    }
    if (total_ == 0) throw Error(ErrorCode::bad_frame, what_ + ": no values, but not empty");
  }

  // share * value of every code, and 0 for those that the exponent does not allow.
  [[nodiscard]] std::array<float, 16> table(const IncomingPart& part) const {
    std::array<float, 16> values{};
    for (std::uint32_t code = 0; code < 16; ++code) {
      if (format_.values == Values::sign) {
        if (code % 8 == 0) values[code] = (code == 0 ? format_.tau : -format_.tau) * share_;
      } else if ((code & 7U) < part.exponent) {
        values[code] = nibble_value(code, part.exponent) * share_;
      }
    }
    return values;
  }
  [[nodiscard]] bool valid(const IncomingPart& part, std::uint32_t code) const {
    if (format_.values == Values::sign) return code % 8 == 0;
    return format_.values == Values::whole ? code == 0 : (code & 7U) < part.exponent;
  }

  [[nodiscard]] float whole(std::size_t tensor, std::span<const std::byte> values,
                            std::size_t i) const {
    const auto value = load_value<float>(values, i * sizeof(float));
    const std::uint32_t exponent = exponent_of(value);
    if (exponent > kMostExponent) refuse(tensor, fmt::format("value {} of its gradient", value));
    return value * share_;
  }

  void add_words(std::span<const std::byte> words, std::span<const std::byte> values) const {
    constexpr std::size_t kAhead = 64;
    const std::size_t last = total_ - 1;
    std::size_t i = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto out = sum_.subspan(tensors_[t].offset, tensors_[t].elements);
      const std::size_t end = i + parts_[t].count;
      const bool all_codes = format_.values == Values::nibble && parts_[t].exponent > 7;
      const auto shares = table(parts_[t]);
      std::uint32_t next = 0;  // the lowest index that may come
      for (; i < end; ++i) {
        const std::uint32_t word = word_at(words, i);
        const std::uint32_t index = word & kIndexMask;
        // Places are far apart, so their memory is asked for early; a prefetch may point anywhere.
        __builtin_prefetch(out.data() + (word_at(words, std::min(i + kAhead, last)) & kIndexMask));
        const std::uint32_t code = word >> kIndexBits;
        if (index < next || index >= out.size()) refuse_index(t, index, next);
        if (!all_codes && !valid(parts_[t], code)) refuse(t, fmt::format("no code {}", code));
        out[index] += values.empty() ? shares[code] : whole(t, values, i);
        next = index + 1;
      }
    }
  }

  // A code of the values beside compact places; value_bytes() has made sure that it is there.
  [[nodiscard]] std::uint32_t code_at(std::span<const std::byte> values, std::size_t i) const {
    if (format_.values == Values::nibble) {
      return std::to_integer<std::uint32_t>(values[i / 2]) >> (i % 2 * 4) & 15U;
    }
    return (std::to_integer<std::uint32_t>(values[i / 8]) >> i % 8 & 1U) << 3U;
  }

  // Values i and following, at ascending places.
  void add_batch(std::size_t t, std::span<const std::uint64_t> places,
                 std::span<const std::byte> values, std::size_t i,
                 const std::array<float, 16>& shares) const {
    const auto out = sum_.subspan(tensors_[t].offset, tensors_[t].elements);
    if (format_.values == Values::whole) {
      for (const std::uint64_t place : places) out[place] += whole(t, values, i++);
      return;
    }
    const bool all_codes = format_.values == Values::nibble && parts_[t].exponent > 7;
    for (const std::uint64_t place : places) {
      const std::uint32_t code = code_at(values, i++);
      if (!all_codes && !valid(parts_[t], code)) refuse(t, fmt::format("no code {}", code));
      out[place] += shares[code];
    }
  }

  // Places are found some batches before their values are added, so that their memory can be asked
  // for. Batches are short, so that the CPU finds places, one after the other, while it adds.
  void add_compact(std::span<const std::byte> values, std::span<const std::byte> gaps) const {
    constexpr std::size_t kBatch = 4;
    constexpr std::size_t kAhead = 16 * kBatch;
    std::array<std::uint64_t, kAhead> ring{};
    const auto batch = [&](std::size_t i, std::size_t count) {
      return std::span(ring).subspan(i % kAhead, std::min(kBatch, count - i));
    };
    BitReader bits(gaps);
    std::size_t first = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto out = sum_.subspan(tensors_[t].offset, tensors_[t].elements);
      const auto shares = table(parts_[t]);
      const std::size_t count = parts_[t].count;
      RiceReader rice(bits, parts_[t].low, out.size() >> parts_[t].low);
      std::uint64_t next = 0;
      std::size_t added = 0;
      for (std::size_t found = 0; added < count; found += kBatch) {
        if (found >= kAhead || found >= count) {
          const auto places = batch(added, count);
          add_batch(t, places, values, first + added, shares);
          added += places.size();
        }
        if (found >= count) continue;
        const auto places = batch(found, count);
        rice.take(places);
        for (std::uint64_t& place : places) {
          place += next;
          if (place >= out.size()) refuse_index(t, place, next);
          __builtin_prefetch(out.data() + place);
          next = place + 1;
        }
      }
      rice.finish();
      first += count;
    }
    if ((bits.bits_read() + 7) / 8 != gaps.size()) {
      throw Error(ErrorCode::bad_frame, fmt::format("{}: gaps of {} bits in {} bytes", what_,
                                                    bits.bits_read(), gaps.size()));
    }
  }

  [[noreturn]] void refuse_index(std::size_t tensor, std::uint64_t index,
                                 std::uint64_t next) const {
    refuse(tensor, fmt::format("index {} of {} elements, where at least {} should come", index,
                               tensors_[tensor].elements, next));
  }

  const VarianceFormat& format_;
  std::span<const VarianceTensor> tensors_;
  std::string what_;
  float share_;
  std::span<float> sum_;
  std::vector<IncomingPart> parts_;
  std::size_t total_ = 0;
};

}  // namespace

void VarianceSent::clear() {
  parts.clear();
  indices.clear();
  codes.clear();
  values.clear();
}

VariancePayload::VariancePayload(VarianceFormat format, std::vector<VarianceTensor> tensors)
    : format_(format), tensors_(std::move(tensors)) {
  for (const VarianceTensor& tensor : tensors_) {
    ensure(format_.places == Places::compact || tensor.elements <= kMostWordElements,
           "indices of 28 bits");
  }
}

// Compact: c gaps of n elements take at most c (1 + low) + n / 2^low bits, low being
// floor(log2(n / c)), which is never more than 3 n.
std::size_t VariancePayload::limit() const {
  std::size_t bytes = tensors_.size() * kPartBytes;
  std::size_t elements = 0;
  for (const VarianceTensor& tensor : tensors_) elements += tensor.elements;
  if (format_.places == Places::compact) {
    return bytes + value_bytes(format_.values, elements) + packed_bytes(elements, 3) + 1;
  }
  bytes += elements * sizeof(std::uint32_t);
  return format_.values == Values::whole ? bytes + elements * sizeof(float) : bytes;
}

void VariancePayload::write(const VarianceSent& sent, std::vector<std::byte>& payload) const {
  ensure(sent.parts.size() == tensors_.size(), "a part for each tensor");
  payload.clear();
  const bool overflow = std::any_of(sent.parts.begin(), sent.parts.end(),
                                    [](const auto& part) { return part.exponent > kMostExponent; });
  if (sent.indices.empty() && !overflow) return;
  payload.resize(tensors_.size() * kPartBytes);
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto& part = sent.parts[t];
    const bool gaps = format_.places == Places::compact;
    const std::size_t at = t * kPartBytes;
    const std::span<std::byte> bytes(payload);
    store_value(bytes, at, part.count);
    store_value(bytes, at + 4, static_cast<std::uint8_t>(part.exponent));
    store_value(bytes, at + 5,
                static_cast<std::uint8_t>(gaps ? rice_bits(tensors_[t].elements, part.count) : 0));
  }
  const std::size_t total = sent.indices.size();
  const auto append_values = [&] {
    const auto bytes = bytes_of(sent.values);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  };
  if (format_.places == Places::words) {
    const std::size_t at = payload.size();
    payload.resize(at + total * sizeof(std::uint32_t));
    write_words(sent, tensors_, std::span(payload).subspan(at));
    if (format_.values == Values::whole) append_values();
    return;
  }
  if (format_.values == Values::whole) {
    append_values();
  } else {
    write_codes(sent, format_.values, payload);
  }
  write_gaps(sent, tensors_, payload);
}

void VariancePayload::add(std::span<const std::byte> payload, int rank, float share,
                          std::span<float> sum) const {
  if (payload.empty()) return;
  Adder(format_, tensors_, rank, share, sum).add(payload);
}

}  // namespace thinreduce

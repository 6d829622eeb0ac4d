#include "thinreduce/methods/variance/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "thinreduce/ensure.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

// Has no bounds check: the constructor has checked the length.
std::uint32_t word_at(std::span<const std::byte> words, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, words.data() + i * sizeof(word), sizeof(word));
  return word;
}

}  // namespace

VarianceReader::VarianceReader(const Source& source)
    : format_(source.format),
      tensors_(source.tensors),
      what_(fmt::format("variance payload of rank {}", source.rank)),
      gaps_({}) {
  ByteReader reader(source.payload, what_);
  read_parts(reader.take(tensors_.size() * kVariancePartBytes));
  if (format_.index == Index::words) {
    words_ = reader.take(total_ * sizeof(std::uint32_t));
    values_ = reader.take(format_.values == Values::whole ? total_ * sizeof(float) : 0);
    reader.finish();
  } else {
    values_ = reader.take(compact_value_bytes(format_.values, total_));
    gaps_ = BitReader(reader.take(reader.left()));
  }
}

void VarianceReader::read_parts(std::span<const std::byte> bytes) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::size_t at = t * kVariancePartBytes;
    Part part{.count = load_value<std::uint32_t>(bytes, at),
              .exponent = load_value<std::uint8_t>(bytes, at + 4),
              .low = load_value<std::uint8_t>(bytes, at + 5)};
    if (part.exponent > kMaxExponent) {
      throw Error::overflow(
          fmt::format("{}, compressed tensor {}: exponent {} is above the maximum "
                      "{}: the rank's gradient sums have overflowed",
                      what_, t, part.exponent, kMaxExponent));
    }
    if (part.count > tensors_[t].elements) {
      refuse(t, fmt::format("{} values, but the tensor has {} elements", part.count,
                            tensors_[t].elements));
    }
    const bool common = format_.values == Values::nibble && part.count > 0;
    if (common != (part.exponent != 0)) {
      refuse(t, fmt::format("exponent {} does not fit {} values", part.exponent, part.count));
    }
    const bool gaps = format_.index == Index::compact;
    const unsigned low = gaps ? gap_low_bits(tensors_[t].elements, part.count) : 0;
    if (part.low != low) refuse(t, fmt::format("{} low bits, must be {}", part.low, low));
    if (const auto reserved = load_value<std::uint16_t>(bytes, at + 6); reserved != 0) {
      refuse(t, fmt::format("a reserved field is {} and must be 0", reserved));
    }
    total_ += part.count;
    parts_.push_back(part);
  }
  if (total_ == 0) throw Error(ErrorCode::bad_frame, what_ + ": has no values, but is not empty");
}

void VarianceReader::begin_tensor(std::size_t tensor, float share) {
  tensor_ = tensor;
  share_ = share;
  end_value_ = next_value_ + parts_[tensor].count;
  next_index_ = 0;
  found_ = {};
  fill_scaled();
  if (format_.index == Index::compact) {
    const unsigned low = parts_[tensor].low;
    rice_.emplace(gaps_, low, tensors_[tensor].elements >> low);
  }
}

void VarianceReader::end_tensor() {
  if (next_value_ < end_value_) {
    refuse_index(format_.index == Index::words ? word_at(words_, next_value_) & kWordIndexMask
                                               : found_.indices[found_.at]);
  }
  if (format_.index == Index::compact) rice_->finish();
}

void VarianceReader::finish() const {
  if (format_.index == Index::words) return;
  const std::size_t bytes = gaps_.bytes().size();
  if ((gaps_.bits_read() + 7) / 8 != bytes) {
    throw Error(ErrorCode::bad_frame, fmt::format("{}: gaps take {} bits, but {} bytes were sent",
                                                  what_, gaps_.bits_read(), bytes));
  }
}

void VarianceReader::fill_scaled() {
  const std::uint32_t exponent = parts_[tensor_].exponent;
  scaled_.fill(0);
  for (std::uint32_t code = 0; code < scaled_.size(); ++code) {
    if (format_.values == Values::sign) {
      if (code % 8 == 0) scaled_[code] = (code == 0 ? format_.tau : -format_.tau) * share_;
    } else if ((code & 7U) < exponent) {
      scaled_[code] = nibble_value(code, exponent) * share_;
    }
  }
  all_codes_ = format_.values == Values::nibble && exponent > 7;
}

float VarianceReader::scaled_code(std::uint32_t code) const {
  if (!all_codes_) {
    const bool valid =
        format_.values == Values::sign ? code % 8 == 0 : (code & 7U) < parts_[tensor_].exponent;
    if (!valid) refuse(tensor_, fmt::format("invalid code {}", code));
  }
  return scaled_[code];
}

float VarianceReader::scaled_float(std::size_t i) const {
  const auto value = load_value<float>(values_, i * sizeof(float));
  if (exponent_of(value) > kMaxExponent) {
    refuse(tensor_, fmt::format("value {} is not finite or above 2^100", value));
  }
  return value * share_;
}

// Returns code i with Index::compact; the constructor has checked the length.
std::uint32_t VarianceReader::code_at(std::size_t i) const {
  if (format_.values == Values::nibble) {
    return std::to_integer<std::uint32_t>(values_[i / 2]) >> (i % 2 * 4) & 15U;
  }
  return (std::to_integer<std::uint32_t>(values_[i / 8]) >> i % 8 & 1U) << 3U;
}

void VarianceReader::add_below(std::size_t end, std::span<float> out) {
  ensure(end <= out.size() && out.size() == tensors_[tensor_].elements,
         "a run must end in its tensor", end, out.size(), tensors_[tensor_].elements);
  const bool compact = format_.index == Index::compact;
  if (format_.values == Values::whole) {
    if (compact) return add_compact(end, out, [&](std::size_t i) { return scaled_float(i); });
    return add_words(end, out, [&](std::size_t i, std::uint32_t code) {
      if (code != 0) refuse(tensor_, fmt::format("invalid code {}", code));
      return scaled_float(i);
    });
  }
  if (!all_codes_) {
    if (compact) {
      return add_compact(end, out, [&](std::size_t i) { return scaled_code(code_at(i)); });
    }
    return add_words(end, out, [&](std::size_t, std::uint32_t code) { return scaled_code(code); });
  }
  // The usual case: nibbles, all valid. Copies keep the compiler from reloading the table after
  // every store to the sum.
  const auto scaled = scaled_;
  if (compact) {
    const auto nibbles = values_;
    return add_compact(end, out, [scaled, nibbles](std::size_t i) {
      return scaled[std::to_integer<std::uint32_t>(nibbles[i / 2]) >> (i % 2 * 4) & 15U];
    });
  }
  add_words(end, out, [scaled](std::size_t, std::uint32_t code) { return scaled[code]; });
}

template <typename Value>
void VarianceReader::add_words(std::size_t end, std::span<float> out, const Value& value) {
  const auto words = words_;
  const std::size_t last = end_value_;
  std::size_t i = next_value_;
  std::uint64_t next = next_index_;
  for (; i < last; ++i) {
    const std::uint32_t word = word_at(words, i);
    const std::uint64_t index = word & kWordIndexMask;
    if (index >= end) break;
    if (index < next) {
      next_index_ = next;
      refuse_index(index);
    }
    out[index] += value(i, word >> kWordIndexBits);
    next = index + 1;
  }
  next_value_ = i;
  next_index_ = next;
}

template <typename Value>
void VarianceReader::add_compact(std::size_t end, std::span<float> out, const Value& value) {
  RiceReader rice = *rice_;
  Batch batch = found_;
  std::uint64_t next = next_index_;
  std::size_t i = next_value_;
  const std::size_t last = end_value_;
  const std::size_t elements = out.size();
  while (i < last) {
    if (batch.at == batch.size) {
      batch.at = 0;
      batch.size = std::min(kBatch, last - i);
      const auto indices = std::span(batch.indices).first(batch.size);
      rice.take(indices);
      for (std::uint64_t& index : indices) {
        index += next;
        if (index >= elements) {
          next_index_ = next;
          refuse_index(index);
        }
        next = index + 1;
      }
      if (batch.size == kBatch && next <= end) {
        for (const std::uint64_t index : batch.indices) out[index] += value(i++);
        batch.at = kBatch;
        continue;
      }
    }
    for (; batch.at < batch.size && batch.indices[batch.at] < end; ++batch.at) {
      out[batch.indices[batch.at]] += value(i++);
    }
    if (batch.at < batch.size) break;
  }
  next_value_ = i;
  next_index_ = next;
  found_ = batch;
  rice_.emplace(rice);
}

void VarianceReader::refuse(std::size_t tensor, const std::string& why) const {
  throw Error(ErrorCode::bad_frame,
              fmt::format("{}, compressed tensor {}: {}", what_, tensor, why));
}

void VarianceReader::refuse_index(std::uint64_t index) const {
  refuse(tensor_, fmt::format("index {} of {} elements, expected at least {}", index,
                              tensors_[tensor_].elements, next_index_));
}

}  // namespace thinreduce

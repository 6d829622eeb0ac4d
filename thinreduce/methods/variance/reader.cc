#include "thinreduce/methods/variance/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Places = VarianceFormat::Places;

// Without load_value's check: the constructor has made sure.
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
  if (format_.places == Places::words) {
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
    if (part.low != (gaps ? gap_low_bits(tensors_[t].elements, part.count) : 0) ||
        load_value<std::uint16_t>(bytes, at + 6) != 0) {
      refuse(t, fmt::format("gaps of {} low bits, or a field that is not 0", part.low));
    }
    total_ += part.count;
    parts_.push_back(part);
  }
  if (total_ == 0) throw Error(ErrorCode::bad_frame, what_ + ": no values, but not empty");
}

void VarianceReader::begin_tensor(std::size_t tensor, float share) {
  tensor_ = tensor;
  share_ = share;
  end_value_ = next_value_ + parts_[tensor].count;
  next_place_ = 0;
  found_ = {};
  fill_shares();
  if (format_.places == Places::compact) {
    const unsigned low = parts_[tensor].low;
    rice_.emplace(gaps_, low, tensors_[tensor].elements >> low);
  }
}

void VarianceReader::end_tensor() {
  if (next_value_ < end_value_) {
    refuse_place(format_.places == Places::words ? word_at(words_, next_value_) & kWordIndexMask
                                                 : found_.places[found_.at]);
  }
  if (format_.places == Places::compact) rice_->finish();
}

void VarianceReader::finish() const {
  if (format_.places == Places::words) return;
  const std::size_t bytes = gaps_.bytes().size();
  if ((gaps_.bits_read() + 7) / 8 != bytes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{}: gaps of {} bits in {} bytes", what_, gaps_.bits_read(), bytes));
  }
}

void VarianceReader::fill_shares() {
  const std::uint32_t exponent = parts_[tensor_].exponent;
  shares_.fill(0);
  for (std::uint32_t code = 0; code < shares_.size(); ++code) {
    if (format_.values == Values::sign) {
      if (code % 8 == 0) shares_[code] = (code == 0 ? format_.tau : -format_.tau) * share_;
    } else if ((code & 7U) < exponent) {
      shares_[code] = nibble_value(code, exponent) * share_;
    }
  }
  all_codes_ = format_.values == Values::nibble && exponent > 7;
}

float VarianceReader::share_of_code(std::uint32_t code) const {
  if (!all_codes_) {
    const bool valid =
        format_.values == Values::sign ? code % 8 == 0 : (code & 7U) < parts_[tensor_].exponent;
    if (!valid) refuse(tensor_, fmt::format("no code {}", code));
  }
  return shares_[code];
}

float VarianceReader::share_of_whole(std::size_t i) const {
  const auto value = load_value<float>(values_, i * sizeof(float));
  if (exponent_of(value) > kMostExponent) {
    refuse(tensor_, fmt::format("value {} of its gradient", value));
  }
  return value * share_;
}

// A code of the values beside compact places; the constructor has made sure that it is there.
std::uint32_t VarianceReader::code_at(std::size_t i) const {
  if (format_.values == Values::nibble) {
    return std::to_integer<std::uint32_t>(values_[i / 2]) >> (i % 2 * 4) & 15U;
  }
  return (std::to_integer<std::uint32_t>(values_[i / 8]) >> i % 8 & 1U) << 3U;
}

void VarianceReader::add_below(std::size_t end, std::span<float> out) {
  ensure(end <= out.size() && out.size() == tensors_[tensor_].elements,
         "a run must end in its tensor", end, out.size(), tensors_[tensor_].elements);
  const bool compact = format_.places == Places::compact;
  if (format_.values == Values::whole) {
    if (compact) return add_compact(end, out, [&](std::size_t i) { return share_of_whole(i); });
    return add_words(end, out, [&](std::size_t i, std::uint32_t code) {
      if (code != 0) refuse(tensor_, fmt::format("no code {}", code));
      return share_of_whole(i);
    });
  }
  if (!all_codes_) {
    if (compact) {
      return add_compact(end, out, [&](std::size_t i) { return share_of_code(code_at(i)); });
    }
    return add_words(end, out,
                     [&](std::size_t, std::uint32_t code) { return share_of_code(code); });
  }
  // Nearly always: nibbles, and none can be wrong. Copies, so that nothing is loaded again because
  // the sum might have overwritten it.
  const auto shares = shares_;
  if (compact) {
    const auto nibbles = values_;
    return add_compact(end, out, [shares, nibbles](std::size_t i) {
      return shares[std::to_integer<std::uint32_t>(nibbles[i / 2]) >> (i % 2 * 4) & 15U];
    });
  }
  add_words(end, out, [shares](std::size_t, std::uint32_t code) { return shares[code]; });
}

template <typename Value>
void VarianceReader::add_words(std::size_t end, std::span<float> out, const Value& value) {
  const auto words = words_;
  const std::size_t last = end_value_;
  std::size_t i = next_value_;
  std::uint64_t next = next_place_;
  for (; i < last; ++i) {
    const std::uint32_t word = word_at(words, i);
    const std::uint64_t place = word & kWordIndexMask;
    if (place >= end) break;
    if (place < next) {
      next_place_ = next;
      refuse_place(place);
    }
    out[place] += value(i, word >> kWordIndexBits);
    next = place + 1;
  }
  next_value_ = i;
  next_place_ = next;
}

template <typename Value>
void VarianceReader::add_compact(std::size_t end, std::span<float> out, const Value& value) {
  RiceReader rice = *rice_;
  Batch batch = found_;
  std::uint64_t next = next_place_;
  std::size_t i = next_value_;
  const std::size_t last = end_value_;
  const std::size_t elements = out.size();
  while (i < last) {
    if (batch.at == batch.size) {
      batch.at = 0;
      batch.size = std::min(kBatch, last - i);
      const auto places = std::span(batch.places).first(batch.size);
      rice.take(places);
      for (std::uint64_t& place : places) {
        place += next;
        if (place >= elements) {
          next_place_ = next;
          refuse_place(place);
        }
        next = place + 1;
      }
      if (batch.size == kBatch && next <= end) {
        for (const std::uint64_t place : batch.places) out[place] += value(i++);
        batch.at = kBatch;
        continue;
      }
    }
    for (; batch.at < batch.size && batch.places[batch.at] < end; ++batch.at) {
      out[batch.places[batch.at]] += value(i++);
    }
    if (batch.at < batch.size) break;
  }
  next_value_ = i;
  next_place_ = next;
  found_ = batch;
  rice_.emplace(rice);
}

void VarianceReader::refuse(std::size_t tensor, const std::string& why) const {
  throw Error(ErrorCode::bad_frame,
              fmt::format("{}, compressed tensor {}: {}", what_, tensor, why));
}

void VarianceReader::refuse_place(std::uint64_t place) const {
  refuse(tensor_, fmt::format("index {} of {} elements, where at least {} should come", place,
                              tensors_[tensor_].elements, next_place_));
}

}  // namespace thinreduce

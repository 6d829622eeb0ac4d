#include "thinreduce/methods/variance/payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/variance/reader.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/rice.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

void write_words(const VarianceSent& sent, std::span<const VarianceTensor> tensors,
                 std::span<std::byte> out) {
  std::size_t i = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto offset = static_cast<std::uint32_t>(tensors[t].offset);
    for (const std::size_t end = i + sent.parts[t].count; i < end; ++i) {
      const std::uint32_t code = sent.codes.empty() ? 0 : sent.codes[i];
      store_value(out, i * sizeof(std::uint32_t),
                  code << kWordIndexBits | (sent.indices[i] - offset));
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
    const unsigned low = gap_low_bits(tensors[t].elements, sent.parts[t].count);
    std::uint64_t next = tensors[t].offset;
    for (const std::size_t end = i + sent.parts[t].count; i < end; ++i) {
      put_rice(bits, sent.indices[i] - next, low);
      next = std::uint64_t{sent.indices[i]} + 1;
    }
  }
  bits.finish();
}

}  // namespace

std::size_t compact_value_bytes(Values values, std::size_t count) {
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

unsigned gap_low_bits(std::size_t elements, std::size_t count) {
  return count == 0 ? 0 : static_cast<unsigned>(std::bit_width(elements / count)) - 1;
}

void VarianceSent::clear() {
  parts.clear();
  indices.clear();
  codes.clear();
  values.clear();
}

void VarianceSent::fill(const VarianceFormat& format, std::span<const VarianceTensor> tensors,
                        const Sums& sums) {
  clear();
  std::size_t begin = 0;
  for (const VarianceTensor& tensor : tensors) {
    const std::size_t end_index = sums.first + tensor.offset + tensor.elements;
    std::size_t end = begin;
    while (end < sums.indices.size() && sums.indices[end] < end_index) ++end;
    append(format, {sums.indices.subspan(begin, end - begin),
                    sums.values.subspan(begin, end - begin), sums.first});
    begin = end;
  }
}

// Appends the sums of one tensor.
void VarianceSent::append(const VarianceFormat& format, const Sums& sums) {
  const std::uint32_t exponent = exponent_of(kernels::largest_magnitude(sums.values));
  const std::size_t before = indices.size();
  indices.reserve(before + sums.values.size());
  for (std::size_t i = 0; i < sums.values.size(); ++i) {
    switch (format.values) {
      case Values::nibble: {
        const auto code = nibble_of(sums.values[i], exponent);
        if (code == kNotSent) continue;
        codes.push_back(code);
        break;
      }
      case Values::sign:
        codes.push_back(sums.values[i] < 0 ? 8 : 0);
        break;
      case Values::whole:
        values.push_back(sums.values[i]);
        break;
    }
    indices.push_back(static_cast<std::uint32_t>(sums.indices[i] - sums.first));
  }
  const auto count = static_cast<std::uint32_t>(indices.size() - before);
  const bool common = format.values == Values::nibble && count > 0;
  // An exponent that readers refuse tells the other ranks that a sum has overflowed.
  parts.push_back({count, common || exponent > kMaxExponent ? exponent : 0});
}

VariancePayload::VariancePayload(VarianceFormat format, std::vector<VarianceTensor> tensors)
    : format_(format), tensors_(std::move(tensors)) {
  for (const VarianceTensor& tensor : tensors_) {
    ensure(format_.index == Index::compact || tensor.elements <= kMaxWordElements,
           "indices must fit in 28 bits", tensor.elements);
  }
}

// With Index::compact, c gaps of n elements take at most c (1 + low) + n / 2^low bits, where low is
// floor(log2(n / c)). That is at most 3 n.
std::size_t VariancePayload::limit() const {
  std::size_t bytes = tensors_.size() * kVariancePartBytes;
  std::size_t elements = 0;
  for (const VarianceTensor& tensor : tensors_) elements += tensor.elements;
  if (format_.index == Index::compact) {
    return bytes + compact_value_bytes(format_.values, elements) + packed_bytes(elements, 3) + 1;
  }
  bytes += elements * sizeof(std::uint32_t);
  return format_.values == Values::whole ? bytes + elements * sizeof(float) : bytes;
}

void VariancePayload::write(const VarianceSent& sent, std::vector<std::byte>& payload) const {
  ensure(sent.parts.size() == tensors_.size(), "each tensor must have a part", sent.parts.size(),
         tensors_.size());
  payload.clear();
  const bool overflow = std::any_of(sent.parts.begin(), sent.parts.end(),
                                    [](const auto& part) { return part.exponent > kMaxExponent; });
  if (sent.indices.empty() && !overflow) return;
  payload.resize(tensors_.size() * kVariancePartBytes);
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto& part = sent.parts[t];
    const bool gaps = format_.index == Index::compact;
    const std::size_t at = t * kVariancePartBytes;
    const std::span<std::byte> bytes(payload);
    store_value(bytes, at, part.count);
    store_value(bytes, at + 4, static_cast<std::uint8_t>(part.exponent));
    store_value(
        bytes, at + 5,
        static_cast<std::uint8_t>(gaps ? gap_low_bits(tensors_[t].elements, part.count) : 0));
  }
  const std::size_t total = sent.indices.size();
  const auto append_values = [&] {
    const auto bytes = bytes_of(sent.values);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  };
  if (format_.index == Index::words) {
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

void VariancePayload::add_up(std::span<const std::span<const std::byte>> payloads, float share,
                             std::span<float> sum) const {
  // Elements per run: they stay in the L2 cache while all ranks' values are added, so memory is
  // read and written once, whatever the number of ranks.
  constexpr std::size_t kRun = 131072;
  std::deque<VarianceReader> readers;
  for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
    if (payloads[rank].empty()) continue;
    readers.emplace_back(
        VarianceReader::Source{format_, tensors_, payloads[rank], static_cast<int>(rank)});
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto tensor = sum.subspan(tensors_[t].offset, tensors_[t].elements);
    for (VarianceReader& reader : readers) reader.begin_tensor(t, share);
    for (std::size_t first = 0; first < tensor.size(); first += kRun) {
      const std::size_t end = std::min(first + kRun, tensor.size());
      std::fill(tensor.data() + first, tensor.data() + end, 0.0F);
      for (VarianceReader& reader : readers) reader.add_below(end, tensor);
    }
    for (VarianceReader& reader : readers) reader.end_tensor();
  }
  for (const VarianceReader& reader : readers) reader.finish();
}

std::size_t VariancePayload::add(std::span<const std::byte> payload, int rank,
                                 std::span<float> sum) const {
  if (payload.empty()) return 0;
  VarianceReader reader(VarianceReader::Source{format_, tensors_, payload, rank});
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    reader.begin_tensor(t, 1);
    reader.add_below(tensors_[t].elements, sum.subspan(tensors_[t].offset, tensors_[t].elements));
    reader.end_tensor();
  }
  reader.finish();
  return reader.values();
}

}  // namespace thinreduce

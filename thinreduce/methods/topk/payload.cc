#include "thinreduce/methods/topk/payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/bf16.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

// Elements per block, so that offsets fit into 16 bits.
constexpr std::size_t kBlock = 65536;
using Count = std::uint32_t;
using Offset = std::uint16_t;

std::size_t blocks_of(std::size_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

using Bf16 = std::uint16_t;

template <typename T>
T value_at(std::span<const std::byte> bytes, std::size_t i) {
  return load_value<T>(bytes, i * sizeof(T));
}

std::size_t bytes_of(TopKValues format) {
  return format == TopKValues::f32 ? sizeof(float) : sizeof(Bf16);
}
float to_float(Bf16 word) {
  return kernels::float_of(word);
}
float to_float(float value) {
  return value;
}

}  // namespace

std::size_t values_to_send(double density, std::size_t elements) {
  const double wanted = std::round(density * static_cast<double>(elements));
  return std::min(elements, std::max<std::size_t>(1, static_cast<std::size_t>(wanted)));
}

std::size_t topk_payload_limit(std::size_t elements, std::size_t selected, TopKValues format) {
  return blocks_of(elements) * sizeof(Count) + selected * (sizeof(Offset) + bytes_of(format));
}

void write_topk_payload(const Selected& selected, std::size_t elements,
                        std::vector<std::byte>& payload, TopKValues format, Workers workers) {
  const std::size_t total = selected.indices.size();
  if (total == 0) return payload.clear();
  payload.resize(topk_payload_limit(elements, total, format));  // every byte is written below
  const std::span<std::byte> bytes(payload);
  const auto counts = bytes.first(blocks_of(elements) * sizeof(Count));
  const auto offsets = bytes.subspan(counts.size(), total * sizeof(Offset));
  const auto values = bytes.subspan(counts.size() + offsets.size());
  const auto first_from = [&](std::size_t block) {
    const auto found = std::ranges::lower_bound(selected.indices, block * kBlock);
    return static_cast<std::size_t>(found - selected.indices.begin());
  };
  ensure(selected.indices.back() < elements, "selected indices must ascend and lie in the bucket",
         selected.indices.back(), elements);
  workers.for_blocks(blocks_of(elements), [&](std::size_t block, std::size_t /*thread*/) {
    const Range own{first_from(block), first_from(block + 1)};
    store_value(counts, block * sizeof(Count), static_cast<Count>(own.size()));
    for (std::size_t i = own.begin; i < own.end; ++i) {
      store_value(offsets, i * sizeof(Offset), static_cast<Offset>(selected.indices[i] % kBlock));
      if (format == TopKValues::f32) {
        store_value(values, i * sizeof(float), selected.values[i]);
      } else {
        store_value(values, i * sizeof(Bf16), kernels::bf16_of(selected.values[i]));
      }
    }
  });
}

void round_to_bf16(std::span<const float> values, std::vector<float>& rounded) {
  constexpr float kLargest = 0x1.fep127F;
  rounded.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    rounded[i] = kernels::float_of(kernels::bf16_of(std::clamp(values[i], -kLargest, kLargest)));
  }
}

TopKReader::TopKReader(std::span<const std::byte> payload, int rank, std::size_t elements,
                       TopKValues format)
    : rank_(rank), format_(format) {
  if (payload.empty()) return;
  const std::string what = fmt::format("top-k payload of rank {}", rank);
  ByteReader reader(payload, what);
  const auto counts = reader.take(blocks_of(elements) * sizeof(Count));
  begin_.push_back(0);
  for (std::size_t block = 0; block < blocks_of(elements); ++block) {
    const std::size_t count = value_at<Count>(counts, block);
    const std::size_t length = elements_of(block, elements).size();
    if (count > length) {
      refuse(block, fmt::format("has {} values, but only {} elements", count, length));
    }
    begin_.push_back(begin_.back() + count);
  }
  offsets_ = reader.take(begin_.back() * sizeof(Offset));
  values_ = reader.take(begin_.back() * bytes_of(format));
  reader.finish();
}

std::size_t TopKReader::blocks(std::size_t elements) {
  return blocks_of(elements);
}

Range TopKReader::elements_of(std::size_t block, std::size_t elements) {
  return {block * kBlock, std::min((block + 1) * kBlock, elements)};
}

void TopKReader::refuse(std::size_t block, const std::string& why) const {
  throw Error(ErrorCode::bad_frame,
              fmt::format("top-k payload of rank {}, block {}: {}", rank_, block, why));
}

void TopKReader::add(std::size_t block, std::span<float> sum) const {
  if (begin_.empty()) return;
  const Range own = elements_of(block, sum.size());
  const auto elements = sum.subspan(own.begin, own.size());
  format_ == TopKValues::f32 ? add_values<float>(block, elements)
                             : add_values<Bf16>(block, elements);
}

template <typename Value>
void TopKReader::add_values(std::size_t block, std::span<float> elements) const {
  std::size_t next = 0;  // smallest offset that may follow
  for (std::size_t i = begin_[block]; i < begin_[block + 1]; ++i) {
    const std::size_t offset = value_at<Offset>(offsets_, i);
    const float value = to_float(value_at<Value>(values_, i));
    if (offset < next)
      refuse(block,
             fmt::format("offset {} must be larger than the one before it, {}", offset, next - 1));
    if (offset >= elements.size()) {
      refuse(block, fmt::format("offset {} must be below {}", offset, elements.size()));
    }
    if (!std::isfinite(value)) {
      throw Error::overflow(
          fmt::format("top-k payload of rank {}, block {}: value {} at offset {}; the rank's "
                      "gradient plus residual overflowed",
                      rank_, block, value, offset));
    }
    elements[offset] += value;
    if (!std::isfinite(elements[offset])) {
      throw Error::overflow(
          fmt::format("top-k payload of rank {}, block {}: value {} at offset {} makes the sum "
                      "over the ranks {}; a gradient overflowed",
                      rank_, block, value, offset, elements[offset]));
    }
    next = offset + 1;
  }
}

void add_topk_payload(std::span<const std::byte> payload, int rank, std::span<float> sum,
                      TopKValues format) {
  const TopKReader reader(payload, rank, sum.size(), format);
  for (std::size_t block = 0; block < blocks_of(sum.size()); ++block) reader.add(block, sum);
}

}  // namespace thinreduce

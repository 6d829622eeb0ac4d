#include "thinreduce/methods/topk/chunk_payload.h"

#include <algorithm>
#include <type_traits>

#include "thinreduce/collective/gather.h"
#include "thinreduce/kernels/select.h"
#include "thinreduce/methods/topk/mean.h"
#include "thinreduce/methods/topk/payload.h"
#include "thinreduce/wire/bit_stream.h"

namespace thinreduce {

TopKChunkPayload::TopKChunkPayload(const TopKChunkShape& shape, bool two_bits)
    : shape_(shape), two_bits_(two_bits), blocks_(shape.blocks()), codes_(blocks_.size()) {}

void TopKChunkPayload::encode(std::size_t block, std::span<const float> values) {
  Block& own = blocks_[block];
  const std::size_t first = shape_.block(block).begin;
  own.indices.clear();
  own.sent.clear();
  codes_[block].clear();
  BitWriter bits(codes_[block]);
  for (std::size_t at = 0; at < values.size(); at += shape_.chunk) {
    const auto chunk = values.subspan(at, std::min(shape_.chunk, values.size() - at));
    const std::size_t wanted = shape_.values_of(chunk.size());
    const std::size_t count = select(chunk, wanted, own);
    const auto offsets = std::span<const std::uint32_t>(own.offsets).first(count);
    const auto selected = std::span<const float>(own.values).first(count);
    for (const auto offset : offsets) {
      own.indices.push_back(static_cast<std::uint32_t>(first + at) + offset);
    }
    if (two_bits_) {
      own.writer.write(offsets, selected, chunk.size(), wanted, bits, own.sent);
    } else {
      own.sent.insert(own.sent.end(), selected.begin(), selected.end());
    }
  }
  bits.finish();
}

// Writes the elements of largest magnitude of a chunk, without zeros, and returns their number.
// Only elements above a guess are looked at twice: chunks resemble the one before them.
std::size_t TopKChunkPayload::select(std::span<const float> chunk, std::size_t wanted,
                                     Block& block) {
  constexpr std::uint32_t kHalfOctave = 1U << 22U;  // of a magnitude's bits: a factor of about 0.7
  block.offsets.resize(chunk.size());
  block.values.resize(chunk.size());
  const kernels::Candidates out{block.offsets, block.values};
  std::size_t count = kernels::collect(chunk, 0, block.guess, out);
  if (count < wanted && block.guess > 1) count = kernels::collect(chunk, 0, 1, out);
  if (count <= wanted) return count;
  const auto values = std::span(block.values).first(count);
  const kernels::KthLargest last = kernels::kth_largest(values, wanted);
  block.guess = std::max(last.magnitude, kHalfOctave + 1) - kHalfOctave;
  return kernels::keep_largest(last, {std::span(block.offsets).first(count), values}, out);
}

void TopKChunkPayload::exchange(Exchange& exchange, std::span<float> mean) {
  exchange.timed(Stage::encode, [&] { write(exchange.workers); });
  if (shape_.elements > 0) {
    exchange.statistics["sent"] =
        static_cast<double>(count_sent()) / static_cast<double>(shape_.elements);
  }
  if (two_bits_) {
    gather_mean<TopKCodeReader>(exchange, mean, topk_code_limit(shape_), shape_);
  } else {
    const std::size_t limit = topk_payload_limit(shape_.elements, max_values());
    gather_mean<TopKReader>(exchange, mean, limit, shape_.elements);
  }
}

void TopKChunkPayload::write(Workers workers) {
  if (two_bits_) {
    join_topk_codes(codes_, payload_);
    if (count_sent() == 0) payload_.clear();
    return;
  }
  indices_.clear();
  values_.clear();
  for (const Block& block : blocks_) {
    indices_.insert(indices_.end(), block.indices.begin(), block.indices.end());
    values_.insert(values_.end(), block.sent.begin(), block.sent.end());
  }
  write_topk_payload({indices_, values_}, shape_.elements, payload_, TopKValues::f32, workers);
}

template <typename Reader, typename Shape>
void TopKChunkPayload::gather_mean(Exchange& exchange, std::span<float> mean, std::size_t limit,
                                   const Shape& shape) const {
  constexpr bool codes = std::is_same_v<Reader, TopKCodeReader>;
  const std::size_t blocks = codes ? shape_.blocks() : TopKReader::blocks(shape_.elements);
  std::vector<Reader> ranks;
  gather(exchange, payload_, limit, [&](int rank, std::span<const std::byte> payload) {
    ranks.emplace_back(payload, rank, shape);
    if (rank + 1 < exchange.size()) return;
    const auto elements_of = [&](std::size_t block) {
      return codes ? shape_.block(block) : TopKReader::elements_of(block, shape_.elements);
    };
    write_topk_mean(std::span<const Reader>(ranks), blocks, elements_of, mean, exchange.workers);
  });
}

void TopKChunkPayload::subtract_sent(std::size_t block, std::span<float> values) const {
  const Block& own = blocks_[block];
  const std::size_t first = shape_.block(block).begin;
  for (std::size_t i = 0; i < own.indices.size(); ++i)
    values[own.indices[i] - first] -= own.sent[i];
}

void TopKChunkPayload::add_sent(std::size_t block, std::span<float> values) const {
  const Block& own = blocks_[block];
  const std::size_t first = shape_.block(block).begin;
  for (std::size_t i = 0; i < own.indices.size(); ++i)
    values[own.indices[i] - first] += own.sent[i];
}

std::size_t TopKChunkPayload::count_sent() const {
  std::size_t count = 0;
  for (const Block& block : blocks_) count += block.indices.size();
  return count;
}

std::size_t TopKChunkPayload::max_values() const {
  const std::size_t rest = shape_.elements % shape_.chunk;
  return shape_.elements / shape_.chunk * shape_.values_of(shape_.chunk) +
         (rest > 0 ? shape_.values_of(rest) : 0);
}

}  // namespace thinreduce

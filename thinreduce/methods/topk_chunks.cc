#include "thinreduce/methods/topk_chunks.h"

#include <algorithm>
#include <span>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/kernels/select.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/topk_codes.h"
#include "thinreduce/methods/topk_payload.h"
#include "thinreduce/wire/bit_stream.h"

namespace thinreduce {
namespace {

class TopKChunks final : public Method {
 public:
  TopKChunks(std::size_t elements, const TopKChunkOptions& options)
      : options_(options),
        shape_{.elements = elements, .chunk = options.chunk, .density = options.density},
        blocks_(shape_.blocks()),
        codes_(blocks_.size()) {
    if (options_.feedback) residual_.resize(elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == shape_.elements, "top-k: the bucket must keep its size",
           bucket.values.size(), shape_.elements);
    ensure(!options_.feedback || residual_.size() == shape_.elements,
           "top-k: each element must have a residual", residual_.size(), shape_.elements);
    exchange.timed(Stage::encode, [&] { encode(bucket.values, exchange.workers); });
    exchange.statistics["owner"] = 0;
    if (shape_.elements > 0) {
      exchange.statistics["sent"] =
          static_cast<double>(count_sent()) / static_cast<double>(shape_.elements);
    }
    if (options_.two_bits) {
      exchange_payloads<TopKCodeReader>(bucket.values, exchange, topk_code_limit(shape_), shape_);
    } else {
      const std::size_t limit = topk_payload_limit(shape_.elements, most_values());
      exchange_payloads<TopKReader>(bucket.values, exchange, limit, shape_.elements);
    }
    // The values are delivered; until here the residual still held them.
    for (const Block& block : blocks_) settle(block);
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.feedback) archive.summed("residual", residual_);
  }

 private:
  // The values that a rank sends for the chunks of a block.
  struct Block {
    bool added = false;                  // the residual has its gradient
    std::vector<std::uint32_t> indices;  // in the bucket
    std::vector<float> sent;             // as received
    std::vector<std::uint32_t> offsets;  // of one chunk
    std::vector<float> values;           // of one chunk
    std::uint32_t guess = 1;  // magnitude that about as many elements of a chunk exceed as are sent
    TopKCodeWriter writer;
  };

  void encode(std::span<const float> gradient, Workers workers) {
    for (Block& block : blocks_) block.added = false;
    try {
      workers.for_blocks(blocks_.size(), [&](std::size_t number, std::size_t /*thread*/) {
        encode_block(number, add_to_residual(number, gradient));
      });
    } catch (...) {
      // Memory ran out: the residual must hold the gradient of all blocks.
      for (std::size_t number = 0; number < blocks_.size(); ++number) {
        if (!blocks_[number].added) (void)add_to_residual(number, gradient);
      }
      throw;
    }
    if (options_.two_bits) {
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

  // Adds a block of the gradient to its residual, if there is one; returns the values to send from.
  std::span<const float> add_to_residual(std::size_t number, std::span<const float> gradient) {
    const UnitRange own = shape_.block(number);
    const auto added = gradient.subspan(own.begin, own.size());
    if (!options_.feedback) return added;
    const auto residual = std::span(residual_).subspan(own.begin, own.size());
    if (options_.decay != 1) kernels::scale(residual, options_.decay);
    kernels::add(residual, added);
    blocks_[number].added = true;
    return residual;
  }

  void encode_block(std::size_t number, std::span<const float> source) {
    Block& block = blocks_[number];
    const std::size_t first = shape_.block(number).begin;
    block.indices.clear();
    block.sent.clear();
    codes_[number].clear();
    BitWriter bits(codes_[number]);
    for (std::size_t at = 0; at < source.size(); at += shape_.chunk) {
      const auto chunk = source.subspan(at, std::min(shape_.chunk, source.size() - at));
      const std::size_t wanted = shape_.values_of(chunk.size());
      const std::size_t count = select(chunk, wanted, block);
      const auto offsets = std::span<const std::uint32_t>(block.offsets).first(count);
      const auto values = std::span<const float>(block.values).first(count);
      for (const auto offset : offsets) {
        block.indices.push_back(static_cast<std::uint32_t>(first + at) + offset);
      }
      if (options_.two_bits) {
        block.writer.write(offsets, values, chunk.size(), wanted, bits, block.sent);
      } else {
        block.sent.insert(block.sent.end(), values.begin(), values.end());
      }
    }
    bits.finish();
  }

  // Writes the elements of largest magnitude of a chunk, without zeros, and returns their number.
  // Only elements above a guess are looked at twice: chunks resemble the one before them.
  static std::size_t select(std::span<const float> chunk, std::size_t wanted, Block& block) {
    constexpr std::uint32_t kHalfOctave = 1U
                                          << 22U;  // of a magnitude's bits: a factor of about 0.7
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

  template <typename Reader, typename Shape>
  void exchange_payloads(std::span<float> values, Exchange& exchange, std::size_t limit,
                         const Shape& shape) {
    std::vector<Reader> ranks;
    gather(exchange, payload_, limit, [&](int rank, std::span<const std::byte> payload) {
      ranks.emplace_back(payload, rank, shape);
      if (rank + 1 < exchange.size()) return;
      write_mean<Reader>(ranks, values, exchange.workers);
    });
  }

  // Adds the values of all ranks in rank order, block by block.
  template <typename Reader>
  void write_mean(std::span<const Reader> ranks, std::span<float> values, Workers workers) const {
    const bool codes = std::is_same_v<Reader, TopKCodeReader>;
    const std::size_t blocks = codes ? shape_.blocks() : TopKReader::blocks(shape_.elements);
    const float share = 1.0f / static_cast<float>(ranks.size());
    workers.for_blocks(blocks, [&](std::size_t block, std::size_t /*thread*/) {
      const UnitRange own =
          codes ? shape_.block(block) : TopKReader::elements_of(block, shape_.elements);
      const auto mean = values.subspan(own.begin, own.size());
      std::ranges::fill(mean, 0.0f);
      for (const Reader& rank : ranks) rank.add(block, values);
      kernels::scale(mean, share);
    });
  }

  // Takes the values that were sent out of the residual.
  void settle(const Block& block) {
    if (!options_.feedback) return;
    for (std::size_t i = 0; i < block.indices.size(); ++i) {
      residual_[block.indices[i]] -= block.sent[i];
    }
  }

  [[nodiscard]] std::size_t count_sent() const {
    std::size_t count = 0;
    for (const Block& block : blocks_) count += block.indices.size();
    return count;
  }
  [[nodiscard]] std::size_t most_values() const {
    const std::size_t rest = shape_.elements % shape_.chunk;
    return shape_.elements / shape_.chunk * shape_.values_of(shape_.chunk) +
           (rest > 0 ? shape_.values_of(rest) : 0);
  }

  TopKChunkOptions options_;
  TopKChunkShape shape_;
  std::vector<Block> blocks_;
  std::vector<std::vector<std::byte>> codes_;  // of each block, with two bits per value
  std::vector<float> residual_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<std::byte> payload_;
};

}  // namespace

std::unique_ptr<Method> make_topk_chunks(std::size_t elements, const TopKChunkOptions& options) {
  return std::make_unique<TopKChunks>(elements, options);
}

}  // namespace thinreduce

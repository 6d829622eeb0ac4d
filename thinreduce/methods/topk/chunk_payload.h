// One rank's values of largest magnitude within chunks: their selection, their payload, and the
// mean of all ranks' payloads. Values travel as floats (payload.h) or in 2 bits (codes.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/methods/topk/codes.h"

namespace thinreduce {

class TopKChunkPayload {
 public:
  TopKChunkPayload(const TopKChunkShape& shape, bool two_bits);

  [[nodiscard]] std::size_t blocks() const { return blocks_.size(); }
  // Selects and codes the values of a block (TopKChunkShape::block). Threads may do so for
  // different blocks at a time. All blocks must be encoded before exchange().
  void encode(std::size_t block, std::span<const float> values);
  // Sends the encoded values to all ranks and replaces `mean` by the mean of what all have sent.
  // Throws Error{bad_frame} if a payload is invalid or a sum overflows; `mean` is then undefined.
  void exchange(Exchange& exchange, std::span<float> mean);
  // Subtracts the values that the others have received from a block's values.
  void subtract_sent(std::size_t block, std::span<float> values) const;
  // Adds them instead.
  void add_sent(std::size_t block, std::span<float> values) const;

 private:
  // The values that a rank sends for the chunks of a block.
  struct Block {
    std::vector<std::uint32_t> indices;  // in the bucket
    std::vector<float> sent;             // as received
    std::vector<std::uint32_t> offsets;  // of one chunk
    std::vector<float> values;           // of one chunk
    std::uint32_t guess = 1;  // magnitude that about as many elements of a chunk exceed as are sent
    TopKCodeWriter writer;
  };

  static std::size_t select(std::span<const float> chunk, std::size_t wanted, Block& block);
  void write(Workers workers);
  template <typename Reader, typename Shape>
  void gather_mean(Exchange& exchange, std::span<float> mean, std::size_t limit,
                   const Shape& shape) const;
  [[nodiscard]] std::size_t count_sent() const;
  [[nodiscard]] std::size_t max_values() const;

  TopKChunkShape shape_;
  bool two_bits_;
  std::vector<Block> blocks_;
  std::vector<std::vector<std::byte>> codes_;  // of each block, with two bits per value
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<std::byte> payload_;
};

}  // namespace thinreduce

// The payload of top-k within chunks, with 2 bits per value; docs/methods/topk.md specifies it.
//
// A value is a sign and one of the chunk's two magnitudes. Positions are Rice codes of the gaps
// between them, which cost within 2 % of the positions' entropy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/wire/bit_stream.h"

namespace thinreduce {

// The chunks of a bucket, the same on all ranks, in blocks that are coded independently.
struct TopKChunkShape {
  std::size_t elements = 0;
  std::size_t chunk = 4096;
  double density = 0.01;

  [[nodiscard]] std::size_t blocks() const;
  // Returns the elements of a block: whole chunks, about 65536 elements or one chunk.
  [[nodiscard]] Range block(std::size_t number) const;
  // Returns the number of values to send of a chunk with this many elements.
  [[nodiscard]] std::size_t values_of(std::size_t chunk_elements) const;
};

// Codes chunks one after another.
class TopKCodeWriter {
 public:
  // `offsets` ascend within the chunk. Appends the chunk's code to `bits`, and to `sent` the values
  // that a reader gets.
  void write(std::span<const std::uint32_t> offsets, std::span<const float> values,
             std::size_t chunk_elements, std::size_t wanted, BitWriter& bits,
             std::vector<float>& sent);

 private:
  std::vector<float> magnitudes_;
};

// Returns the maximum size in bytes of a payload.
[[nodiscard]] std::size_t topk_code_limit(const TopKChunkShape& shape);

// Replaces `payload` by the codes of all blocks.
void join_topk_codes(std::span<const std::vector<std::byte>> blocks,
                     std::vector<std::byte>& payload);

// The payload of `rank`, which must stay valid.
class TopKCodeReader {
 public:
  // Throws Error{bad_frame} unless the payload has the length that it announces.
  TopKCodeReader(std::span<const std::byte> payload, int rank, const TopKChunkShape& shape);
  // Adds the values of a block to the sum of all elements. Throws Error{bad_frame} if the block is
  // invalid; some values may have been added by then.
  void add(std::size_t block, std::span<float> sum) const;

 private:
  void add_chunk(BitReader& bits, std::size_t block, std::span<float> elements) const;
  [[noreturn]] void refuse(std::size_t block, const std::string& why) const;

  int rank_;
  TopKChunkShape shape_;
  std::vector<std::span<const std::byte>> blocks_;  // empty: no values
};

}  // namespace thinreduce

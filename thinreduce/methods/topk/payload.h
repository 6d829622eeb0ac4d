// The payload of top-k; docs/methods/topk.md specifies it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/methods/top_selector.h"

namespace thinreduce {

// Returns the number of values to send: at least one, so that small buckets make progress.
[[nodiscard]] std::size_t values_to_send(double density, std::size_t elements);

// The format of the values in a payload.
enum class TopKValues { f32, bf16 };

// Returns the maximum size in bytes of a payload of `selected` out of `elements` elements.
[[nodiscard]] std::size_t topk_payload_limit(std::size_t elements, std::size_t selected,
                                             TopKValues format = TopKValues::f32);

// Replaces `payload`; it becomes empty if nothing is selected. With TopKValues::bf16 the values
// must be what round_to_bf16() returns.
void write_topk_payload(const Selected& selected, std::size_t elements,
                        std::vector<std::byte>& payload, TopKValues format = TopKValues::f32,
                        Workers workers = {});

// The payload of `rank`, which must stay valid, read block by block: blocks are independent.
class TopKReader {
 public:
  // Throws Error{bad_frame} unless the payload has the length that it announces.
  TopKReader(std::span<const std::byte> payload, int rank, std::size_t elements,
             TopKValues format = TopKValues::f32);

  [[nodiscard]] static std::size_t blocks(std::size_t elements);
  // Returns the elements of a block.
  [[nodiscard]] static Range elements_of(std::size_t block, std::size_t elements);
  // Adds the values of a block to the sum of all elements. Throws Error{bad_frame} if the block is
  // invalid; some values may have been added by then.
  void add(std::size_t block, std::span<float> sum) const;

 private:
  template <typename Value>
  void add_values(std::size_t block, std::span<float> elements) const;
  [[noreturn]] void refuse(std::size_t block, const std::string& why) const;

  int rank_;
  TopKValues format_;
  std::vector<std::size_t> begin_;  // first value per block, and the end; empty: no values
  std::span<const std::byte> offsets_;
  std::span<const std::byte> values_;
};

// Adds the values of `rank`'s payload to the sum. Throws Error{bad_frame} if the payload is
// invalid; some values may have been added by then.
void add_topk_payload(std::span<const std::byte> payload, int rank, std::span<float> sum,
                      TopKValues format = TopKValues::f32);

// Replaces `rounded` by the nearest bfloat16 values; magnitudes beyond the largest become that.
void round_to_bf16(std::span<const float> values, std::vector<float>& rounded);

}  // namespace thinreduce

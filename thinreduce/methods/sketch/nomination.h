// A message in which one rank names elements of a bucket to all others, in about one byte per
// element. Its length is the same in every step, so it needs no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"

namespace thinreduce {

// Returns the bytes of a message that names up to `max` of `elements` elements.
[[nodiscard]] std::size_t nomination_bytes(std::size_t elements, std::size_t max);

// `named` must ascend and be below `elements`; `message` must have nomination_bytes() bytes.
void write_nomination(std::span<const std::uint32_t> named, std::span<std::byte> message);

// Replaces `named` by the elements in `rank`'s message. Throws Error{bad_frame} for an element past
// the end of the bucket.
void read_nomination(std::span<const std::byte> message, int rank, std::size_t elements,
                     std::vector<std::uint32_t>& named);

// Returns those of the ascending `elements` that are in `run`.
[[nodiscard]] std::span<const std::uint32_t> elements_in(UnitRange run,
                                                         std::span<const std::uint32_t> elements);
// Sets `values`, those of the elements in `run`, to 0 at the named ones.
void clear_named(std::span<const std::uint32_t> named, UnitRange run, std::span<float> values);

}  // namespace thinreduce

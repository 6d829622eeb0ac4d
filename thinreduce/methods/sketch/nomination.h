// Elements of a bucket that one rank names to all others, in about a byte each. A message has the
// same length in every step, so nobody has to announce it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinreduce {

// Bytes of a message that names up to `most` of `elements` elements.
[[nodiscard]] std::size_t nomination_bytes(std::size_t elements, std::size_t most);

// `named` ascends, every one below `elements`; `message` has nomination_bytes().
void write_nomination(std::span<const std::uint32_t> named, std::span<std::byte> message);

// What `rank` named. Throws Error{bad_frame} for an element that does not exist.
void read_nomination(std::span<const std::byte> message, int rank, std::size_t elements,
                     std::vector<std::uint32_t>& named);

}  // namespace thinreduce

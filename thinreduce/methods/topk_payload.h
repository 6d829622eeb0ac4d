// The payload of top-k; docs/methods/topk.md specifies it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/methods/top_selector.h"

namespace thinreduce {

// The longest payload of `selected` values out of `elements`.
[[nodiscard]] std::size_t topk_payload_limit(std::size_t elements, std::size_t selected);

// Replaces `payload`. Nothing selected makes an empty one.
void write_topk_payload(const kernels::Selected& selected, std::size_t elements,
                        std::vector<std::byte>& payload);

// Adds the values in a payload of `rank` to the sum. Throws Error{bad_frame} when anything in it is
// wrong; part of the values may then have been added.
void add_topk_payload(std::span<const std::byte> payload, int rank, std::span<float> sum);

}  // namespace thinreduce

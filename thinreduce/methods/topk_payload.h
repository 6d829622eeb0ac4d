// The payload of top-k; docs/methods/topk.md specifies it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/methods/top_selector.h"

namespace thinreduce {

// Returns the number of values to send: at least one, so that small buckets make progress.
[[nodiscard]] std::size_t values_to_send(double density, std::size_t elements);

// Returns the maximum size in bytes of a payload of `selected` out of `elements` elements.
[[nodiscard]] std::size_t topk_payload_limit(std::size_t elements, std::size_t selected);

// Replaces `payload`; it becomes empty if nothing is selected.
void write_topk_payload(const kernels::Selected& selected, std::size_t elements,
                        std::vector<std::byte>& payload);

// Adds the values of `rank`'s payload to the sum. Throws Error{bad_frame} if the payload is
// invalid; some values may have been added by then.
void add_topk_payload(std::span<const std::byte> payload, int rank, std::span<float> sum);

}  // namespace thinreduce

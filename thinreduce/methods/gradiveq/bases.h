// New bases for layers, from the samples that the layers' owners hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/methods/gradiveq/layer.h"

namespace thinreduce {

// Computes a new basis for each of the layers `due` at its owner and broadcasts it, so that all
// ranks hold the same bits. Throws Error{bad_frame} that names the owner of an invalid basis.
void renew_bases(const GradiveqSettings& settings, std::span<GradiveqLayer> layers,
                 const std::vector<std::size_t>& due, std::uint64_t step, Exchange& exchange);

}  // namespace thinreduce

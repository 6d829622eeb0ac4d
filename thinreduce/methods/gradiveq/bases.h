// New bases for layers, from the samples that the layers' keepers hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinreduce/methods/gradiveq/layer.h"

namespace thinreduce {

// Everything that a new basis replaces in a layer. The basis has the same bits on all ranks.
struct NewBasis {
  std::size_t layer = 0;
  std::size_t candidate = 0;
  float mean_weight = 0;
  Basis basis{};  // size 0: the layer is sent uncompressed
  std::vector<float> owed{};
  std::vector<GradiveqLayer::Evidence> evidence{};  // at the keeper: for the next basis
};

// Computes a new basis for each of the layers `due` at its keeper and sends it to all ranks.
// Changes no layer, so that all are as before if the exchange fails. Throws Error{bad_frame} that
// names the keeper that sent an invalid basis.
[[nodiscard]] std::vector<NewBasis> exchange_bases(const GradiveqState& state,
                                                   const std::vector<std::size_t>& due,
                                                   Exchange& exchange);
// Gives a layer its new basis. Cannot fail.
void adopt(NewBasis&& basis, std::uint64_t step, GradiveqLayer& layer) noexcept;

}  // namespace thinreduce

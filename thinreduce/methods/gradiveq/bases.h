// New bases for layers, from the samples that the layers' keepers hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/gradiveq/layer.h"

namespace thinreduce {

// A new basis for a layer, the same bits on all ranks.
struct NewBasis {
  std::size_t layer = 0;
  std::size_t candidate = 0;
  std::size_t size = 0;  // 0: the layer is sent uncompressed
  float mean_weight = 0;
  std::vector<float> columns{};  // U, row-major
};

// Computes a new basis for each of the layers `due` at its keeper and sends it to all ranks.
// Changes no layer, so that all are as before if the exchange fails. Throws Error{bad_frame} that
// names the keeper that sent an invalid basis.
[[nodiscard]] std::vector<NewBasis> exchange_bases(const GradiveqSettings& settings,
                                                   std::span<const GradiveqLayer> layers,
                                                   const std::vector<std::size_t>& due,
                                                   Exchange& exchange);
// Everything that a new basis replaces in a layer.
struct Adoption {
  std::size_t layer = 0;
  std::size_t candidate = 0;
  float mean_weight = 0;
  Basis basis{};
  std::vector<float> owed{};
  std::vector<GradiveqLayer::Evidence> evidence{};  // at the owner: for the next basis
};
// Makes room in `scratch` for the new basis, too.
[[nodiscard]] Adoption prepare(const GradiveqSettings& settings, const NewBasis& basis,
                               const GradiveqLayer& layer, GradiveqScratch& scratch);
// Gives a layer its new basis. Cannot fail.
void adopt(Adoption&& adoption, std::uint64_t step, GradiveqLayer& layer) noexcept;

}  // namespace thinreduce

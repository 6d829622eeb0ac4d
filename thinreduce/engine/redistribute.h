// Turns the saved states of a world of N ranks into states for a world of M ranks, so that a run
// continues with more or fewer ranks and loses nothing that its methods still owe to the model.
//
// Residuals of old rank r go to new rank r mod M and are added where several meet, so their sum
// over all ranks stays the same; a new rank that gets none starts with zeros. State that all ranks
// share is copied. Data that one rank owns moves to the rank that owns it in the new world.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/export.h"

namespace thinreduce {

// Takes what Session::save_bytes() returned on all old ranks, in any order; returns the argument of
// Session::load_bytes() for every new rank, in rank order. Throws Error{bad_state} unless the
// states are those of all ranks of one run, saved at the same step.
[[nodiscard]] THINREDUCE_EXPORT std::vector<std::vector<std::byte>> redistribute(
    std::span<const std::vector<std::byte>> states, int world);

}  // namespace thinreduce

// One tensor as GradiVeQ treats it: how it is cut, and its basis once there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "thinreduce/methods/gradiveq/basis.h"
#include "thinreduce/methods/gradiveq/slicing.h"

namespace thinreduce {

struct GradiveqLayer {
  std::string name;
  std::vector<Slicing> candidates;  // all that are tried; those without slices travel whole
  std::size_t chosen = 0;
  bool decided = false;  // by samples; from then on, `chosen` stays

  // No rank: the layer travels uncompressed, because there is no basis yet or none that pays.
  Basis basis;
  // How much of the mean is taken off before slices are projected.
  float mean_share = 0;
  // What is kept is a residual no part of which was sent, since the basis is new. Else it is all
  // that was taken in since then, of which the part within the basis was sent.
  bool fresh = true;

  [[nodiscard]] const Slicing& slicing() const { return candidates[chosen]; }
  [[nodiscard]] bool compressed() const { return basis.rank() > 0; }
};

// A slice that travels uncompressed in a step.
struct WholeSlice {
  // sample: the gradient alone, for the statistics; flush: with all that was kept.
  enum class Kind : std::uint8_t { sample, flush };
  std::size_t slice = 0;
  Kind kind = Kind::sample;
};

// What all ranks must draw alike.
struct SampleKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t bucket = 0;
  std::uint64_t layer = 0;
};

// `count` different slices of `slices`, ascending, one from each of `count` equal parts; appended.
void draw_slices(const SampleKey& key, std::size_t slices, std::size_t count,
                 std::vector<std::size_t>& drawn);

// How many fall due in step `step` when `rate` do on average, and how many did before.
struct Due {
  std::size_t before = 0;
  std::size_t now = 0;
};
[[nodiscard]] Due due_at(std::uint64_t step, double rate);

}  // namespace thinreduce

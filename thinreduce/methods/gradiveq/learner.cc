#include "thinreduce/methods/gradiveq/learner.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/kernels/dot.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/gradiveq/matrix.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

// The mean of a slice is an exponential average of its samples: it remembers about eight of them.
constexpr float kMeanRate = 0.125f;
// The factor per step by which a rank's memory of its own loss fades.
constexpr float kLossMemory = 0.9f;
// Samples for a first basis, per float of a slice, if the layer has as many slices.
constexpr std::size_t kSamplesPerDimension = 4;

// Returns the number of events before `step` when there are `rate` per step on average.
std::size_t events_before(std::uint64_t step, double rate) {
  return static_cast<std::size_t>(std::floor(static_cast<double>(step) * rate));
}

// Adds an energy to one of a layer.
void add_energy(float& sum, double energy) {
  constexpr float kMax = GradiveqLayer::kMaxEnergy;
  sum = std::min(sum + static_cast<float>(std::min<double>(energy, kMax)), kMax);
}

// Draws `count` of `slices` slices, one from each of `count` equal parts: the same on all ranks.
void draw_samples(const GradiveqState& state, std::size_t slices, std::size_t count,
                  std::uint64_t step, GradiveqLayer& layer) {
  layer.samples.clear();
  count = std::min(count, slices);
  const std::uint64_t stream = mix({state.seed, step, state.bucket, layer.number});
  for (std::size_t i = 0; i < count; ++i) {
    const Range part = cut({0, slices}, count, i);
    layer.samples.push_back(part.begin + mix(stream ^ i) % part.size());
  }
}

// Sets `samples` to those of a layer for evidence[index], cut as `slicing`: sums over the ranks,
// without the mean before them. sum_of(slice, sum) reads a sum; it returns false for a slice that
// is no sample after all.
template <typename SumOf>
void collect_samples(GradiveqState& state, GradiveqLayer& layer, std::size_t index,
                     const Slicing& slicing, float weight, const SumOf& sum_of) {
  GradiveqScratch& scratch = state.scratch.front();
  const auto sum = room(scratch.values, slicing.slice());
  state.samples.clear();
  for (const auto slice : layer.samples) {
    if (!sum_of(slice, sum)) continue;
    const auto mean = slicing.view(std::span(state.mean), slicing.places_of(slice), scratch.mean);
    if (index == 0) {
      layer.agreement += kernels::dot(sum, mean);
      layer.strength += kernels::dot(mean, mean);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      state.samples.push_back((sum[i] - mean[i] * layer.mean_weight) * weight);
    }
  }
}

// A spike does not move the mean: it predicts nothing, and the gradients of later steps would be
// rounded away beside it.
void move_mean(std::span<float> mean, std::span<const float> sum, float rate) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const float seen = std::abs(sum[i]) <= kMaxMean ? sum[i] : mean[i];
    mean[i] += rate * (seen - mean[i]);
  }
}

// Returns the rate at which an uncompressed step moves the mean.
float rate_of(const GradiveqState& state, const Collection& collection) {
  // In phases, the mean is that of the phase.
  return state.settings.phases ? 1.0f / static_cast<float>(collection.number + 1) : kMeanRate;
}

}  // namespace

void choose_slices(GradiveqState& state, std::uint64_t step) {
  const GradiveqSettings& settings = state.settings;
  for (GradiveqLayer& layer : state.layers) {
    const std::size_t slices = layer.slicing().slices();
    const auto all = static_cast<double>(slices);
    // Small layers need more to learn enough: up to one slice per step, or one of 32.
    const double rate = std::max(settings.sample * all, std::min(1.0, all / 32));
    draw_samples(state, slices, events_before(step + 1, rate) - events_before(step, rate), step,
                 layer);
    layer.sent_as.assign(layer.compressed() ? slices : 0, SentAs::projection);
    if (!layer.compressed() || settings.phases) continue;
    // The first step with a basis sends residuals too: no sample would be the gradient alone.
    if (!layer.fresh) {
      for (const auto slice : layer.samples) layer.sent_as[slice] = SentAs::sample;
    }
    if (!settings.feedback) continue;
    const std::size_t begin = events_before(step, settings.flush * all);
    const std::size_t end = events_before(step + 1, settings.flush * all);
    for (std::size_t i = begin; i < std::min(end, begin + slices); ++i) {
      layer.sent_as[i % slices] = SentAs::flush;
    }
  }
}

void measure_loss(GradiveqState& state, std::span<const float> values, float share) {
  GradiveqScratch& scratch = state.scratch.front();
  for (GradiveqLayer& layer : state.layers) {
    layer.lost *= kLossMemory;
    layer.energy *= kLossMemory;
    if (!layer.compressed()) continue;
    const Slicing& slicing = layer.slicing();
    const auto own = room(scratch.values, slicing.slice());
    const auto projection = room(scratch.projections, layer.basis.size());
    for (const auto slice : layer.samples) {
      const Range places = slicing.places_of(slice);
      slicing.gather(values, places.begin, own);
      add_energy(layer.energy, kernels::dot(own, own));
      const auto mean = slicing.view(std::span(state.mean), places, scratch.mean);
      kernels::add_multiple(own, mean, -layer.mean_weight * share, own);
      layer.basis.project(own, projection);
      // U is orthonormal: the energy of the projection is not lost.
      add_energy(layer.lost,
                 std::max(0.0, kernels::dot(own, own) - kernels::dot(projection, projection)));
    }
  }
}

double lost_fraction(const GradiveqState& state) {
  double lost = 0;
  double energy = 0;
  for (const GradiveqLayer& layer : state.layers) {
    lost += layer.lost;
    energy += layer.energy;
  }
  return energy > 0 ? lost / energy : 0;
}

void learn(GradiveqState& state, const GradiveqSum& sums) {
  for (GradiveqLayer& layer : state.layers) {
    if (!layer.is_keeper) continue;
    collect_samples(state, layer, 0, layer.slicing(), 1,
                    [&](std::size_t slice, std::span<float> sum) {
                      return sums.sample_sum(layer, slice, sum);
                    });
    layer.evidence[0].fit.add(state.samples);
  }
}

void move_means(GradiveqState& state, const GradiveqSum& sums) {
  GradiveqScratch& scratch = state.scratch.front();
  for (const GradiveqLayer& layer : state.layers) {
    const Slicing& slicing = layer.slicing();
    const auto sum = room(scratch.values, slicing.slice());
    for (const auto slice : layer.samples) {
      if (!sums.sample_sum(layer, slice, sum)) continue;
      const Range places = slicing.places_of(slice);
      const auto mean = slicing.view(std::span(state.mean), places, scratch.mean);
      move_mean(mean, sum, kMeanRate);
      slicing.scatter(mean, places.begin, state.mean);
    }
  }
}

void learn(GradiveqState& state, std::span<const float> sums, const Collection& collection) {
  // In phases, Welford's weights make the moments those around the final mean.
  const float weight = state.settings.phases ? std::sqrt(1 - rate_of(state, collection)) : 1;
  for (GradiveqLayer& layer : state.layers) {
    const bool tests = layer.evidence.size() > 1 && collection.step % 2 == 1;
    for (std::size_t c = 0; c < layer.evidence.size(); ++c) {
      const Slicing& slicing = layer.candidates[layer.decided ? layer.chosen : c];
      if (slicing.slices() == 0) continue;
      const std::size_t count = kSamplesPerDimension * slicing.slice() + collection.steps - 1;
      draw_samples(state, slicing.slices(), count / collection.steps, collection.step, layer);
      collect_samples(state, layer, c, slicing, weight,
                      [&](std::size_t slice, std::span<float> sum) {
                        slicing.gather(sums, slicing.places_of(slice).begin, sum);
                        return true;
                      });
      auto& [fit, test] = layer.evidence[c];
      (tests ? test : fit).add(state.samples);
    }
  }
}

void move_means(GradiveqState& state, std::span<const float> sums, const Collection& collection) {
  move_mean(state.mean, sums, rate_of(state, collection));
}

}  // namespace thinreduce

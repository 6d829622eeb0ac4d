#include "thinreduce/methods/gradiveq/learner.h"

#include <algorithm>
#include <cmath>

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

// A spike does not move the mean: it predicts nothing, and the gradients of later steps would be
// rounded away beside it.
void move_mean(std::span<float> mean, std::span<const float> sum, float rate) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const float seen = std::abs(sum[i]) <= GradiveqLearner::kMaxMean ? sum[i] : mean[i];
    mean[i] += rate * (seen - mean[i]);
  }
}

// Adds an energy to one of a layer.
void add_energy(float& sum, double energy) {
  constexpr float kMax = GradiveqLayer::kMaxEnergy;
  sum = std::min(sum + static_cast<float>(std::min<double>(energy, kMax)), kMax);
}

}  // namespace

GradiveqLearner::GradiveqLearner(const GradiveqSettings& settings, const MethodSetup& setup,
                                 GradiveqState& state)
    : settings_(settings), seed_(setup.seed), bucket_(setup.layout.id), state_(state) {
  std::size_t longest = 0;
  for (const auto& layer : state.layers) {
    for (const Slicing& slicing : layer.candidates) longest = std::max(longest, slicing.slice());
  }
  for (auto* scratch : {&slice_, &mean_, &projection_}) scratch->resize(longest);
}

void GradiveqLearner::choose_slices(std::uint64_t step) {
  for (std::size_t l = 0; l < state_.layers.size(); ++l) {
    GradiveqLayer& layer = state_.layers[l];
    const std::size_t slices = layer.slicing().slices();
    const auto all = static_cast<double>(slices);
    // Small layers need more to learn enough: up to one slice per step, or one of 32.
    const double rate = std::max(settings_.sample * all, std::min(1.0, all / 32));
    draw(l, slices, events_before(step + 1, rate) - events_before(step, rate), step);
    layer.sent_as.assign(layer.compressed() ? slices : 0, SentAs::projection);
    if (!layer.compressed() || settings_.phases) continue;
    // The first step with a basis sends residuals too: no sample would be the gradient alone.
    if (!layer.fresh) {
      for (const auto slice : layer.samples) layer.sent_as[slice] = SentAs::sample;
    }
    if (!settings_.feedback) continue;
    const std::size_t begin = events_before(step, settings_.flush * all);
    const std::size_t end = events_before(step + 1, settings_.flush * all);
    for (std::size_t i = begin; i < std::min(end, begin + slices); ++i) {
      layer.sent_as[i % slices] = SentAs::flush;
    }
  }
}

// Draws `count` of `slices` slices, one from each of `count` equal parts: the same on all ranks.
void GradiveqLearner::draw(std::size_t l, std::size_t slices, std::size_t count,
                           std::uint64_t step) {
  auto& samples = state_.layers[l].samples;
  samples.clear();
  count = std::min(count, slices);
  const std::uint64_t stream = mix(mix(mix(mix(seed_) ^ step) ^ bucket_) ^ l);
  for (std::size_t i = 0; i < count; ++i) {
    const UnitRange part = cut({0, slices}, count, i);
    samples.push_back(part.begin + mix(stream ^ i) % part.size());
  }
}

void GradiveqLearner::vote(std::span<const float> values, float share) {
  for (GradiveqLayer& layer : state_.layers) {
    layer.lost *= kLossMemory;
    layer.energy *= kLossMemory;
    layer.vote = 0;
    if (!layer.compressed()) continue;
    for (const auto slice : layer.samples) measure_loss(layer, slice, values, share);
    layer.vote = layer.lost > static_cast<float>(settings_.trigger) * layer.energy ? 1 : 0;
  }
}

void GradiveqLearner::measure_loss(GradiveqLayer& layer, std::size_t slice,
                                   std::span<const float> values, float share) {
  const std::size_t k = layer.slicing().slice();
  const auto own = std::span(slice_).first(k);
  const auto mean = std::span(mean_).first(k);
  const auto projection = std::span(projection_).first(layer.basis.size());
  layer.slicing().gather(values, slice * k, own);
  layer.slicing().gather(state_.mean, slice * k, mean);
  add_energy(layer.energy, dot(own, own));
  kernels::add_multiple(own, mean, -layer.mean_weight * share, own);
  layer.basis.project(own, projection);
  // U is orthonormal: the energy of the projection is not lost.
  add_energy(layer.lost, std::max(0.0, dot(own, own) - dot(projection, projection)));
}

double GradiveqLearner::loss() const {
  double lost = 0;
  double energy = 0;
  for (const GradiveqLayer& layer : state_.layers) {
    lost += layer.lost;
    energy += layer.energy;
  }
  return energy > 0 ? lost / energy : 0;
}

void GradiveqLearner::take(GradiveqLayer& layer, std::size_t candidate, std::span<const float> sum,
                           std::span<const float> mean, float weight) {
  if (candidate == 0) {
    layer.agreement += dot(sum, mean);
    layer.strength += dot(mean, mean);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    samples_.push_back((sum[i] - mean[i] * layer.mean_weight) * weight);
  }
}

template <typename Visit>
void GradiveqLearner::for_samples(std::size_t l, std::span<const float> values,
                                  const GradiveqRing& ring, float world, Visit visit) {
  const GradiveqLayer& layer = state_.layers[l];
  const Slicing& slicing = layer.slicing();
  const auto sum = std::span(slice_).first(slicing.slice());
  const auto mean = std::span(mean_).first(slicing.slice());
  for (const auto slice : layer.samples) {
    const std::size_t place = slice * slicing.slice();
    if (!layer.compressed()) {
      slicing.gather(values, place, sum);
      kernels::scale(sum, world);
    } else if (layer.sent_as[slice] == SentAs::sample) {
      std::ranges::copy(ring.whole_sum(l, place), sum.begin());
    } else {
      continue;
    }
    slicing.gather(state_.mean, place, mean);
    visit(place, sum, mean);
  }
}

void GradiveqLearner::learn(std::span<const float> values, const GradiveqRing& ring, float world) {
  for (std::size_t l = 0; l < state_.layers.size(); ++l) {
    GradiveqLayer& layer = state_.layers[l];
    if (!layer.owned) continue;
    samples_.clear();
    for_samples(l, values, ring, world,
                [&](std::size_t, auto sum, auto mean) { take(layer, 0, sum, mean, 1); });
    layer.evidence[0].fit.add(samples_);
  }
}

void GradiveqLearner::move_means(std::span<const float> values, const GradiveqRing& ring,
                                 float world) {
  for (std::size_t l = 0; l < state_.layers.size(); ++l) {
    for_samples(l, values, ring, world, [&](std::size_t place, auto sum, auto mean) {
      move_mean(mean, sum, kMeanRate);
      state_.layers[l].slicing().scatter(mean, place, state_.mean);
    });
  }
}

float GradiveqLearner::rate(const Collection& collection) const {
  // In phases, the mean is that of the phase.
  return settings_.phases ? 1.0f / static_cast<float>(collection.number + 1) : kMeanRate;
}

void GradiveqLearner::collect(std::span<const float> sums, const Collection& collection) {
  // In phases, Welford's weights make the moments those around the final mean.
  const float weight = settings_.phases ? std::sqrt(1 - rate(collection)) : 1;
  for (std::size_t l = 0; l < state_.layers.size(); ++l) {
    GradiveqLayer& layer = state_.layers[l];
    for (std::size_t c = 0; c < layer.evidence.size(); ++c) {
      const Slicing& slicing = layer.candidates[layer.decided ? layer.chosen : c];
      const std::size_t k = slicing.slice();
      if (k == 0) continue;
      const auto sum = std::span(slice_).first(k);
      const auto mean = std::span(mean_).first(k);
      const std::size_t count = kSamplesPerDimension * k + collection.steps - 1;
      draw(l, slicing.slices(), count / collection.steps, collection.step);
      samples_.clear();
      for (const auto slice : layer.samples) {
        slicing.gather(sums, slice * k, sum);
        slicing.gather(state_.mean, slice * k, mean);
        take(layer, c, sum, mean, weight);
      }
      const bool tests = layer.evidence.size() > 1 && collection.step % 2 == 1;
      (tests ? layer.evidence[c].test : layer.evidence[c].fit).add(samples_);
    }
  }
}

void GradiveqLearner::move_means(std::span<const float> sums, const Collection& collection) {
  move_mean(state_.mean, sums, rate(collection));
}

}  // namespace thinreduce

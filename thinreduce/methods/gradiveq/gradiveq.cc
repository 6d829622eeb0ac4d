#include "thinreduce/methods/gradiveq/gradiveq.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/projections.h"
#include "thinreduce/methods/gradiveq/ring.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

// The mean of a slice is an exponential average of its samples: it remembers about eight of them.
constexpr float kMeanRate = 0.125f;
// Larger magnitudes do not enter the mean.
constexpr float kMaxMean = SliceStatistics::kMaxLength;
// The factor per step by which a rank's memory of its own loss fades.
constexpr float kLossMemory = 0.9f;
// Votes renew a basis at most this many times per interval.
constexpr std::uint64_t kRenewalsPerInterval = 8;
// Samples for a first basis, per float of a slice, if the layer has as many slices.
constexpr std::size_t kSamplesPerDimension = 4;

// The number of events in step `step` when there are `rate` per step on average, and before it.
struct Due {
  std::size_t before = 0;
  std::size_t now = 0;
};
Due due_at(std::uint64_t step, double rate) {
  const auto until = [&](std::uint64_t steps) {
    return static_cast<std::size_t>(std::floor(static_cast<double>(steps) * rate));
  };
  return {until(step), until(step + 1) - until(step)};
}

class GradiVeQ final : public Method {
 public:
  GradiVeQ(const GradiveqSettings& settings, const MethodSetup& setup)
      : settings_(settings),
        seed_(setup.seed),
        bucket_(setup.layout.id),
        layers_(cut_layers(settings, setup)),
        mean_(setup.layout.elements),
        kept_(settings.feedback ? setup.layout.elements : 0),
        ring_(settings.quantizer ? &quantized_.emplace(*settings.quantizer, setup) : nullptr) {
    std::size_t longest = 0;
    for (const auto& layer : layers_) {
      for (const Slicing& slicing : layer.candidates) longest = std::max(longest, slicing.slice());
    }
    for (auto* scratch : {&slice_, &slice_mean_, &projection_}) scratch->resize(longest);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == mean_.size(), "gradiveq: the size of a bucket must not change");
    if (!taken_back_.empty()) kernels::add(bucket.values, taken_back_);
    taken_back_.clear();
    if (compressing_) {
      compressed_step(bucket.values, exchange);
    } else {
      uncompressed_step(bucket.values, exchange);
    }
    ++step_;
  }

  void add_residual(std::span<float> values) override;
  void state(Archive& archive) override;
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  // The first steps, and with `phases` some steps per cycle: sends everything uncompressed, and
  // learns the next bases from it.
  void uncompressed_step(std::span<float> values, Exchange& exchange) {
    exchange.timed(Stage::encode, [&] {
      if (kept_.empty()) return;
      // `kept_` holds the gradient too until the exchange has succeeded.
      kernels::add(kept_, values);
      std::copy(kept_.begin(), kept_.end(), values.begin());
    });
    sum_floats(exchange, values, 1.0f);
    exchange.timed(Stage::decode, [&] {
      require_finite_sum(exchange, values, "element");
      collect_samples(values);
    });
    const bool last = phase_step_ + 1 >= settings_.uncompressed_steps(cycle_ == 0);
    std::vector<NewBasis> bases;
    if (last) bases = new_bases(due([](std::size_t) { return true; }), exchange);
    // Nothing can fail from here on.
    exchange.timed(Stage::decode, [&] {
      std::fill(kept_.begin(), kept_.end(), 0.0f);
      if (const float rate = collect_rate(); rate > 0) move_mean(mean_, values, rate);
      kernels::scale(values, 1.0f / static_cast<float>(exchange.size()));
      apply_bases(settings_, layers_, bases, step_);
    });
    phase_step_ = last ? 0 : phase_step_ + 1;
    compressing_ = last;
  }

  // The algorithm. Until the last exchange has succeeded, all ranks keep what they must have alike,
  // and this rank can take its gradient back.
  void compressed_step(std::span<float> values, Exchange& exchange) {
    const auto world = static_cast<float>(exchange.size());
    exchange.timed(Stage::encode, [&] {
      choose_whole_slices();
      vote(values, 1.0f / world);
      ring_.start({.layers = layers_,
                   .values = values,
                   .mean = mean_,
                   .kept = kept_,
                   .exchange = &exchange,
                   .votes = settings_.trigger > 0});
    });
    std::vector<std::size_t> renewed;
    std::vector<NewBasis> bases;
    try {
      project_sum_and_rebuild(exchange);
      renewed = due_layers(exchange);
      if (!settings_.phases) {
        exchange.timed(Stage::decode, [&] { learn(values, world); });
        bases = new_bases(renewed, exchange);
      }
    } catch (...) {
      take_back();
      throw;
    }
    // Nothing can fail from here on.
    exchange.statistics["loss"] = local_loss();
    exchange.timed(Stage::decode, [&] { finish_step(values, world, renewed, bases); });
  }

  // After a failed step: everything that this rank owes goes to `taken_back_`. How the layers are
  // sent stays as it was, because other ranks may have failed before they began the step.
  void take_back() {
    if (kept_.empty()) return;
    for (std::size_t l = 0; l < layers_.size(); ++l) ring_.take_back(l);
    taken_back_ = kept_;
    std::fill(kept_.begin(), kept_.end(), 0.0f);
  }

  // 1. Draws the samples of this step. With `running`, they are sent whole, and so are the slices
  // whose turn it is to deliver their residual.
  void choose_whole_slices() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      GradiveqLayer& layer = layers_[l];
      const std::size_t slices = layer.slicing().slices();
      const auto all = static_cast<double>(slices);
      // Small layers need more to learn enough: up to one slice per step, or one of 32.
      const double rate = std::max(settings_.sample * all, std::min(1.0, all / 32));
      draw_samples(l, slices, due_at(step_, rate).now);
      layer.sent_as.assign(layer.compressed() ? slices : 0, SentAs::projection);
      if (!layer.compressed() || settings_.phases) continue;
      // The first step with a basis sends residuals too: no sample would be the gradient alone.
      if (!layer.fresh) {
        for (const auto slice : layer.samples) layer.sent_as[slice] = SentAs::sample;
      }
      if (kept_.empty()) continue;
      const Due turn = due_at(step_, settings_.flush * all);
      for (std::size_t i = 0; i < std::min(turn.now, slices); ++i) {
        layer.sent_as[(turn.before + i) % slices] = SentAs::flush;
      }
    }
  }

  // Draws `count` of `slices` slices, one from each of `count` equal parts: the same on all ranks.
  void draw_samples(std::size_t l, std::size_t slices, std::size_t count) {
    layers_[l].samples.clear();
    count = std::min(count, slices);
    const std::uint64_t stream = mix(mix(mix(mix(seed_) ^ step_) ^ bucket_) ^ l);
    for (std::size_t i = 0; i < count; ++i) {
      const UnitRange part = cut({0, slices}, count, i);
      layers_[l].samples.push_back(part.begin + mix(stream ^ i) % part.size());
    }
  }

  // 2. Measures this rank's own loss on the samples and votes for new bases where it is large.
  void vote(std::span<const float> values, float share) {
    for (GradiveqLayer& layer : layers_) {
      layer.lost *= kLossMemory;
      layer.energy *= kLossMemory;
      layer.vote = 0;
      if (!layer.compressed()) continue;
      for (const auto slice : layer.samples) measure_loss(layer, slice, values, share);
      layer.vote = layer.lost > static_cast<float>(settings_.trigger) * layer.energy ? 1 : 0;
    }
  }

  void measure_loss(GradiveqLayer& layer, std::size_t slice, std::span<const float> values,
                    float share) {
    const std::size_t k = layer.slicing().slice();
    const auto own = std::span(slice_).first(k);
    const auto mean = std::span(slice_mean_).first(k);
    const auto projection = std::span(projection_).first(layer.basis.size());
    layer.slicing().gather(values, slice * k, own);
    layer.slicing().gather(mean_, slice * k, mean);
    const double energy = dot(own, own);
    kernels::center(own, mean, layer.mean_weight * share, own);
    layer.basis.project(own, projection, padded_);
    // U is orthonormal: the energy of the projection is not lost.
    const double lost = std::max(0.0, dot(own, own) - dot(projection, projection));
    constexpr float kMax = GradiveqLayer::kMaxEnergy;
    layer.lost = std::min(layer.lost + static_cast<float>(std::min<double>(lost, kMax)), kMax);
    layer.energy =
        std::min(layer.energy + static_cast<float>(std::min<double>(energy, kMax)), kMax);
  }

  // 3. Projects the slices, sums projections and whole slices over the ranks, and rebuilds the
  // mean: segment by segment inside the collective, or all at once around a quantizer.
  void project_sum_and_rebuild(Exchange& exchange) {
    if (quantized_) {
      ring_.reduce_quantized(step_, exchange);
    } else {
      settings_.sum(exchange, ring_);
    }
  }

  // 4. The samples enter the statistics of the layers' owners and move the means at all ranks.
  void learn(std::span<const float> values, float world) {
    for_samples(values, world, [&](GradiveqLayer& layer, std::size_t, auto sum, auto mean) {
      if (layer.owned) layer.take_sample(0, sum, mean);
    });
    for (GradiveqLayer& layer : layers_) {
      if (layer.owned) layer.learn(layer.evidence[0].fit);
    }
  }
  void move_means(std::span<const float> values, float world) {
    for_samples(values, world, [&](GradiveqLayer& layer, std::size_t place, auto sum, auto mean) {
      move_mean(mean, sum, kMeanRate);
      layer.slicing().scatter(mean, place, mean_);
    });
  }

  // Calls visit(layer, place, sum over the ranks, mean before it) for the samples of this step.
  template <typename Visit>
  void for_samples(std::span<const float> values, float world, Visit visit) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      GradiveqLayer& layer = layers_[l];
      const Slicing& slicing = layer.slicing();
      const auto sum = std::span(slice_).first(slicing.slice());
      const auto mean = std::span(slice_mean_).first(slicing.slice());
      for (const auto slice : layer.samples) {
        const std::size_t place = slice * slicing.slice();
        if (!layer.compressed()) {
          slicing.gather(values, place, sum);
          kernels::scale(sum, world);
        } else if (layer.sent_as[slice] == SentAs::sample) {
          std::ranges::copy(ring_.whole_sum(l, place), sum.begin());
        } else {
          continue;
        }
        slicing.gather(mean_, place, mean);
        visit(layer, place, sum, mean);
      }
    }
  }

  // Returns the rate at which an uncompressed step moves the mean; 0 if its samples do not count.
  [[nodiscard]] float collect_rate() const {
    if (phase_step_ < collect_start()) return 0;
    // In phases, the mean is that of the phase.
    return settings_.phases ? 1.0f / static_cast<float>(phase_step_ - collect_start() + 1)
                            : kMeanRate;
  }
  // Returns the step of an uncompressed phase in which collecting samples starts.
  [[nodiscard]] std::uint64_t collect_start() const {
    const std::uint64_t all_steps = settings_.uncompressed_steps(cycle_ == 0);
    return settings_.phases ? all_steps - settings_.collect : 0;
  }

  // Learns from an uncompressed step, where any slice can be a sample. `sums` are over the ranks.
  void collect_samples(std::span<const float> sums) {
    const float rate = collect_rate();
    if (rate == 0) return;
    const std::uint64_t steps = settings_.uncompressed_steps(cycle_ == 0) - collect_start();
    // In phases, Welford's weights make the moments those around the final mean.
    const float weight = settings_.phases ? std::sqrt(1 - rate) : 1;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      GradiveqLayer& layer = layers_[l];
      for (std::size_t c = 0; c < layer.evidence.size(); ++c) {
        const Slicing& slicing = layer.candidates[layer.decided ? layer.chosen : c];
        const std::size_t k = slicing.slice();
        if (k == 0) continue;
        draw_samples(l, slicing.slices(), (kSamplesPerDimension * k + steps - 1) / steps);
        for (const auto slice : layer.samples) {
          slicing.gather(sums, slice * k, std::span(slice_).first(k));
          slicing.gather(mean_, slice * k, std::span(slice_mean_).first(k));
          layer.take_sample(c, std::span(slice_).first(k), std::span(slice_mean_).first(k), weight);
        }
        const bool tests = layer.evidence.size() > 1 && step_ % 2 == 1;
        layer.learn(tests ? layer.evidence[c].test : layer.evidence[c].fit);
      }
    }
  }

  // A spike does not move the mean: it predicts nothing, and the gradients of later steps would be
  // rounded away beside it.
  static void move_mean(std::span<float> mean, std::span<const float> sum, float rate) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const float seen = std::abs(sum[i]) <= kMaxMean ? sum[i] : mean[i];
      mean[i] += rate * (seen - mean[i]);
    }
  }

  // 5. Returns the layers whose basis ends with this step. With `running`, most ranks voted for a
  // new one, or it is their turn, spread over the interval. With `phases`, any layer ends the
  // phase.
  [[nodiscard]] std::vector<std::size_t> due_layers(const Exchange& exchange) const {
    const std::uint64_t interval = settings_.interval;
    const std::uint64_t steps = phase_step_ + 1;
    return due([&](std::size_t l) {
      const bool turn = (steps + l * interval / layers_.size()) % interval == 0;
      return voted_out(l, exchange) || (turn && !settings_.phases);
    });
  }

  [[nodiscard]] std::vector<NewBasis> new_bases(const std::vector<std::size_t>& layers,
                                                Exchange& exchange) {
    exchange.statistics["renewed"] = static_cast<double>(layers.size());
    return exchange_bases(settings_, layers_, layers, exchange);
  }

  // 6. After the last exchange: moves the means, and turns what was kept of layers whose basis ends
  // into their residual.
  void finish_step(std::span<const float> values, float world,
                   const std::vector<std::size_t>& renewed, std::span<const NewBasis> bases) {
    for (auto& layer : layers_) layer.fresh = !layer.compressed();
    ++phase_step_;
    if (!settings_.phases) {
      move_means(values, world);
      for (const auto l : renewed) ring_.settle(l);
      apply_bases(settings_, layers_, bases, step_);
    } else if (phase_step_ >= settings_.interval || !renewed.empty()) {
      for (std::size_t l = 0; l < layers_.size(); ++l) ring_.settle(l);
      compressing_ = false;
      phase_step_ = 0;
      ++cycle_;
    }
  }

  // Returns the layers that can be compressed and for which `wanted` holds.
  template <typename Wanted>
  [[nodiscard]] std::vector<std::size_t> due(Wanted wanted) const {
    std::vector<std::size_t> layers;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (wanted(l) && layers_[l].slicing().slices() > 0) layers.push_back(l);
    }
    return layers;
  }

  // Returns whether most ranks voted for a new basis of a layer whose basis is not too new.
  [[nodiscard]] bool voted_out(std::size_t l, const Exchange& exchange) const {
    if (settings_.trigger == 0) return false;
    const float votes = ring_.vote_sums()[l];
    if (!(votes >= 0 && votes <= static_cast<float>(exchange.size()))) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("gradiveq: bucket {}, step {}: {} votes of {} ranks for a new basis "
                              "of tensor '{}'; a rank sent invalid data",
                              bucket_, step_, votes, exchange.size(), layers_[l].name));
    }
    const std::uint64_t pause =
        std::max<std::uint64_t>(1, settings_.interval / kRenewalsPerInterval);
    return 2 * votes > static_cast<float>(exchange.size()) &&
           step_ - layers_[l].renewed_at >= pause;
  }

  // Returns the fraction of this rank's energy that the bases lose.
  [[nodiscard]] double local_loss() const {
    double lost = 0;
    double energy = 0;
    for (const GradiveqLayer& layer : layers_) {
      lost += layer.lost;
      energy += layer.energy;
    }
    return energy > 0 ? lost / energy : 0;
  }

  const GradiveqSettings settings_;
  const std::uint64_t seed_;
  const std::uint64_t bucket_;

  std::uint64_t step_ = 0;
  std::uint64_t phase_step_ = 0;  // steps since compressing began or ended
  std::uint64_t cycle_ = 0;       // times that compressing ended
  bool compressing_ = false;
  std::vector<GradiveqLayer> layers_;
  std::vector<float> mean_;  // per element, of the sum over the ranks
  std::vector<float> kept_;  // per element, see GradiveqLayer::fresh; empty without feedback
  // Per element, to be added to the next gradient; empty unless the last step failed.
  std::vector<float> taken_back_;

  std::optional<QuantizedProjections> quantized_;
  GradiveqRing ring_;
  std::vector<float> slice_, slice_mean_, projection_, padded_;  // scratch for one slice
};

// The part of `kept_` within a basis was sent; of it, a quantizer owes its errors.
void GradiVeQ::add_residual(std::span<float> values) {
  if (kept_.empty()) return;
  kernels::add(values, kept_);
  if (!taken_back_.empty()) kernels::add(values, taken_back_);
  for (const GradiveqLayer& layer : layers_) {
    if (!layer.compressed() || layer.fresh) continue;
    const std::size_t k = layer.slicing().slice();
    const auto slice = std::span(slice_).first(k);
    const auto within = std::span(slice_mean_).first(k);
    const auto projection = std::span(projection_).first(layer.basis.size());
    for (std::size_t s = 0; s < layer.slicing().slices(); ++s) {
      layer.slicing().gather(kept_, s * k, slice);
      layer.basis.project(slice, projection, padded_);
      kernels::scale(projection, -1.0f);
      if (layer.quantized) {
        for_projections(layer, {s * k, s * k + k},
                        [&](std::size_t i, std::size_t at) { projection[at] += layer.owed[i]; });
      }
      layer.basis.rebuild(projection, within, padded_);
      layer.slicing().gather(values, s * k, slice);
      kernels::add(slice, within);
      layer.slicing().scatter(slice, s * k, values);
    }
  }
}

void GradiVeQ::state(Archive& archive) {
  std::size_t layers = layers_.size();
  archive.count("step", step_, Archive::kMaxSteps);
  // A step that failed may be counted in its phase already.
  archive.count("phase step", phase_step_, step_ + 1);
  archive.count("cycle", cycle_, step_ + 1);
  archive.flag("compressing", compressing_);
  archive.count("layers", layers, Archive::kMaxSteps);
  if (layers != layers_.size()) {
    throw Error(ErrorCode::bad_state, fmt::format("gradiveq: bucket {} has {} tensors to compress, "
                                                  "{} in the state",
                                                  bucket_, layers_.size(), layers));
  }
  if (const auto end = settings_.uncompressed_steps(cycle_ == 0);
      archive.loading() && !compressing_ && phase_step_ > end) {
    throw Error(ErrorCode::bad_state, fmt::format("gradiveq: 'phase step' is {} of {} uncompressed "
                                                  "steps",
                                                  phase_step_, end));
  }
  archive.replicated("mean", mean_, Archive::Length::per_element);
  archive.check_range("mean", mean_, {-kMaxMean, kMaxMean});
  if (settings_.feedback) {
    archive.summed("kept", kept_);
    archive.summed("taken back", taken_back_, Archive::Length::per_element_or_none);
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) layers_[l].state(archive, l);
}

std::uint64_t GradiVeQ::fingerprint() const {
  const std::uint64_t schedule[] = {step_, phase_step_, cycle_, compressing_ ? 1U : 0U};
  std::uint64_t hash = checksum(std::as_bytes(std::span(schedule)));
  for (const GradiveqLayer& layer : layers_) {
    const std::uint64_t parts[] = {hash,
                                   layer.chosen,
                                   layer.slicing().slice(),
                                   layer.fresh ? 1U : 0U,
                                   layer.basis.size(),
                                   layer.basis.hash(),
                                   std::bit_cast<std::uint32_t>(layer.mean_weight)};
    hash = checksum(std::as_bytes(std::span(parts)));
  }
  return hash;
}

}  // namespace

std::unique_ptr<Method> make_gradiveq(const GradiveqSettings& settings, const MethodSetup& setup) {
  return std::make_unique<GradiVeQ>(settings, setup);
}

}  // namespace thinreduce

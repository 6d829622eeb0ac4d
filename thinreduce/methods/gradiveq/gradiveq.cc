#include "thinreduce/methods/gradiveq/gradiveq.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/bases.h"
#include "thinreduce/methods/gradiveq/ring.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// The mean of a slice follows its samples at this rate: it remembers about eight of them.
constexpr float kMeanRate = 0.125f;
// What a rank has seen of its own loss fades at this rate a step.
constexpr float kLossMemory = 0.9f;
// At least this share of the interval lies between a new basis and one that ranks ask for.
constexpr std::uint64_t kEarliest = 8;

class GradiVeQ final : public Method {
 public:
  GradiVeQ(const GradiveqSettings& settings, const MethodSetup& setup)
      : settings_(settings),
        seed_(setup.seed),
        bucket_(setup.layout.id),
        elements_(setup.layout.elements),
        layers_(cut_layers(settings, setup.layout)),
        bases_(settings, setup, layers_),
        projections_({settings.quantizer, settings.feedback}, setup),
        payload_(settings.quantizer ? &projections_ : nullptr),
        mean_(elements_),
        kept_(settings.feedback ? elements_ : 0),
        whole_(layers_.size()),
        votes_(layers_.size()),
        lost_(2 * layers_.size()) {
    payload_.arrange(layers_);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "gradiveq: the bucket keeps its size");
    if (compressing_) {
      compressed_step(bucket.values, exchange);
    } else {
      full_step(bucket.values, exchange);
    }
    ++step_;
  }

  void state(Archive& archive) override;
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  [[nodiscard]] GradiveqRing::Fields fields(std::span<float> values) {
    return {values, mean_, kept_};
  }

  // Everything travels uncompressed, with what was kept before.
  void full_step(std::span<float> values, Exchange& exchange) {
    exchange.timed(Stage::encode, [&] {
      if (kept_.empty()) return;
      // If the exchange fails, nothing of this is lost.
      kernels::add(kept_, values);
      std::copy(kept_.begin(), kept_.end(), values.begin());
    });
    ring_sum(exchange, values, 1.0f);
    exchange.timed(Stage::decode, [&] {
      if (const auto bad = kernels::first_nonfinite(values); bad != values.size()) {
        throw Error(ErrorCode::bad_input,
                    fmt::format("gradiveq: bucket {}, step {}: element {} of the sum over the {} "
                                "ranks is {}; gradients are too large",
                                bucket_, step_, bad, exchange.size(), values[bad]));
      }
      std::fill(kept_.begin(), kept_.end(), 0.0f);
      if (const std::uint64_t collected = collecting(); collected > 0) collect(values, collected);
      kernels::scale(values, 1.0f / static_cast<float>(exchange.size()));
    });
    if (++phase_step_ < full_steps()) return;
    std::vector<std::size_t> all(layers_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    renew(all, exchange);
    begin_phase(true);
  }

  // How many uncompressed steps come before the next compressed one.
  [[nodiscard]] std::uint64_t full_steps() const {
    const auto& schedule = settings_.schedule;
    if (!schedule.phases) return std::max<std::uint64_t>(1, schedule.warmup);
    return schedule.collect +
           (cycle_ == 0 ? schedule.warmup : schedule.returning(settings_.feedback));
  }

  // Which step of collecting samples this uncompressed step is, from 1; 0: none.
  [[nodiscard]] std::uint64_t collecting() const {
    if (!settings_.schedule.phases) return phase_step_ + 1;
    const std::uint64_t before = full_steps() - settings_.schedule.collect;
    return phase_step_ < before ? 0 : phase_step_ - before + 1;
  }

  // `sums` are over all ranks.
  void collect(std::span<const float> sums, std::uint64_t collected) {
    // In phases it is the mean over the phase.
    const bool phases = settings_.schedule.phases;
    const float rate = phases ? 1.0f / static_cast<float>(collected) : kMeanRate;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      bases_.collect(l, {.sums = sums,
                         .mean = mean_,
                         .rate = rate,
                         .steps = phases ? settings_.schedule.collect : full_steps(),
                         .key = {seed_, step_, bucket_, l}});
    }
    for (std::size_t i = 0; i < mean_.size(); ++i) mean_[i] += rate * (sums[i] - mean_[i]);
  }

  void compressed_step(std::span<float> values, Exchange& exchange) {
    exchange.timed(Stage::encode, [&] {
      choose_whole_slices();
      vote(values);
      payload_.start({.fields = fields(values),
                      .world = exchange.size(),
                      .whole = whole_,
                      .votes = settings_.trigger > 0 ? std::span<const float>(votes_)
                                                     : std::span<const float>()});
    });
    try {
      if (settings_.quantizer) {
        quantized_exchange(exchange);
      } else {
        settings_.ring(exchange, payload_);
      }
    } catch (...) {
      payload_.put_back();
      for (auto& layer : layers_) layer.fresh = true;
      throw;
    }
    for (auto& layer : layers_) layer.fresh = !layer.compressed();
    if (!settings_.schedule.phases)
      exchange.timed(Stage::decode, [&] { learn(values, exchange.size()); });
    exchange.statistics["loss"] = local_loss();
    ++phase_step_;
    if (settings_.schedule.phases) {
      if (phase_step_ >= settings_.schedule.interval || !wanted(exchange).empty())
        end_compressing();
    } else {
      renew(due(exchange), exchange);
    }
  }

  // All projections must be there before the first leaves, because their sizes decide the steps.
  void quantized_exchange(Exchange& exchange) {
    exchange.timed(Stage::encode, [&] { payload_.encode({0, payload_.units()}); });
    projections_.exchange(whole_, step_, exchange, payload_.moments());
    ring_sum(exchange, payload_.rest(), 1.0f);
    exchange.timed(Stage::decode, [&] { payload_.deliver(); });
  }

  void choose_whole_slices() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      whole_[l].clear();
      const GradiveqLayer& layer = layers_[l];
      const std::size_t slices = layer.slicing().slices();
      drawn_.clear();
      draw_samples(l);
      if (!layer.compressed() || settings_.schedule.phases) continue;
      // The first step of a basis sends what was kept: a sample would not be the gradient alone.
      if (!layer.fresh) {
        for (const auto slice : drawn_) whole_[l].push_back({slice, WholeSlice::Kind::sample});
      }
      if (kept_.empty()) continue;
      const Due due = due_at(step_, settings_.flush * static_cast<double>(slices));
      for (std::size_t i = 0; i < std::min(due.now, slices); ++i) {
        whole_[l].push_back({(due.before + i) % slices, WholeSlice::Kind::flush});
      }
      // Of two entries for a slice the flush stays.
      std::sort(whole_[l].begin(), whole_[l].end(), [](const auto& a, const auto& b) {
        return a.slice != b.slice ? a.slice < b.slice : a.kind > b.kind;
      });
      const auto same = [](const auto& a, const auto& b) { return a.slice == b.slice; };
      whole_[l].erase(std::unique(whole_[l].begin(), whole_[l].end(), same), whole_[l].end());
    }
  }

  // Few slices of a small layer would teach too little: up to one a step, or one of 32, at least.
  void draw_samples(std::size_t l) {
    const std::size_t slices = layers_[l].slicing().slices();
    const auto all = static_cast<double>(slices);
    const double rate = std::max(settings_.sample * all, std::min(1.0, all / 32));
    draw_slices({seed_, step_, bucket_, l}, slices, due_at(step_, rate).now, drawn_);
  }

  // Measures this rank's loss on the samples and votes for new bases.
  void vote(std::span<const float> values) {
    const float share = 1.0f / static_cast<float>(bases_.world());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const GradiveqLayer& layer = layers_[l];
      float& lost = lost_[2 * l];
      float& total = lost_[2 * l + 1];
      lost *= kLossMemory;
      total *= kLossMemory;
      votes_[l] = 0;
      if (!layer.compressed()) continue;
      drawn_.clear();
      draw_samples(l);
      for (const auto slice : drawn_) {
        const SliceLoss loss = bases_.measure(layer, slice, values, mean_, share);
        lost += loss.lost;
        total += loss.total;
      }
      votes_[l] = lost > static_cast<float>(settings_.trigger) * total ? 1.0f : 0.0f;
    }
  }

  [[nodiscard]] double local_loss() const {
    double lost = 0;
    double total = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      lost += lost_[2 * l];
      total += lost_[2 * l + 1];
    }
    return total > 0 ? lost / total : 0;
  }

  // The samples of this step go into the means of all ranks and the statistics of a layer's owner.
  void learn(std::span<const float> values, int world) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const GradiveqLayer& layer = layers_[l];
      if (layer.compressed()) {
        for (const WholeSlice& whole : whole_[l]) {
          if (whole.kind != WholeSlice::Kind::sample) continue;
          bases_.learn(l, whole.slice, payload_.whole_sum(l, whole.slice), {mean_, kMeanRate});
        }
      } else {
        drawn_.clear();
        draw_samples(l);
        for (const auto slice : drawn_) {
          const auto sum = bases_.sum_from_mean(layer, slice, values, world);
          bases_.learn(l, slice, sum, {mean_, kMeanRate});
        }
      }
      bases_.flush_samples(l);
    }
  }

  // Layers for which most ranks voted and whose basis is not new.
  [[nodiscard]] std::vector<std::size_t> wanted(const Exchange& exchange) const {
    std::vector<std::size_t> layers;
    const auto sums = payload_.vote_sums();
    for (std::size_t l = 0; l < sums.size(); ++l) {
      if (!(sums[l] >= 0 && sums[l] <= static_cast<float>(exchange.size()))) {
        throw Error(ErrorCode::bad_frame,
                    fmt::format("gradiveq: bucket {}, step {}: {} ranks have {} votes for a new "
                                "basis of tensor '{}'",
                                bucket_, step_, exchange.size(), sums[l], layers_[l].name));
      }
      const std::uint64_t rest =
          std::max<std::uint64_t>(1, settings_.schedule.interval / kEarliest);
      if (2 * sums[l] > static_cast<float>(exchange.size()) &&
          step_ - bases_.renewed_at(l) >= rest) {
        layers.push_back(l);
      }
    }
    return layers;
  }

  // The layers' turns are spread over the interval, so that no step has to renew all.
  [[nodiscard]] std::vector<std::size_t> due(const Exchange& exchange) const {
    std::vector<std::size_t> layers = wanted(exchange);
    const std::uint64_t interval = settings_.schedule.interval;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const bool turn = (phase_step_ + l * interval / layers_.size()) % interval == 0;
      if (turn && std::find(layers.begin(), layers.end(), l) == layers.end()) layers.push_back(l);
    }
    return layers;
  }

  void renew(const std::vector<std::size_t>& which, Exchange& exchange) {
    std::vector<std::size_t> sliced;
    for (const auto l : which) {
      if (bases_.can_compress(l)) sliced.push_back(l);
    }
    exchange.statistics["renewed"] = static_cast<double>(sliced.size());
    if (sliced.empty()) return;
    exchange.timed(Stage::encode, [&] {
      for (const auto l : sliced) payload_.settle(l, fields({}));
    });
    bases_.renew(sliced, step_, exchange);
    payload_.arrange(layers_);
  }

  void end_compressing() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      payload_.settle(l, fields({}));
      layers_[l].fresh = true;
    }
    begin_phase(false);
  }

  void begin_phase(bool compressing) {
    compressing_ = compressing;
    phase_step_ = 0;
    if (!compressing) ++cycle_;
  }

  GradiveqSettings settings_;
  std::uint64_t seed_;
  std::uint64_t bucket_;
  std::size_t elements_;
  std::vector<GradiveqLayer> layers_;
  GradiveqBases bases_;
  GradiveqProjections projections_;  // used with a quantizer only
  GradiveqRing payload_;

  std::uint64_t step_ = 0;
  std::uint64_t phase_step_ = 0;  // steps since the phase began
  std::uint64_t cycle_ = 0;       // phases of compressing that are over
  bool compressing_ = false;
  std::vector<float> mean_;  // of the sum over the ranks
  std::vector<float> kept_;  // see GradiveqLayer::fresh
  std::vector<std::vector<WholeSlice>> whole_;
  std::vector<float> votes_;
  std::vector<float> lost_;  // of each layer: energy lost, energy in all
  std::vector<std::size_t> drawn_;
};

void GradiVeQ::state(Archive& archive) {
  std::uint64_t compressing = compressing_ ? 1 : 0;
  archive.number("step", step_);
  archive.number("phase step", phase_step_);
  archive.number("cycle", cycle_);
  archive.number("compressing", compressing);
  archive.replicated("mean", mean_, Archive::Length::per_element);
  if (settings_.feedback) archive.summed("kept", kept_);
  archive.replicated("losses", lost_);
  if (lost_.size() != 2 * layers_.size()) {
    throw Error(ErrorCode::bad_state, fmt::format("gradiveq has {} layers here, {} in the state",
                                                  layers_.size(), lost_.size() / 2));
  }
  compressing_ = compressing != 0;
  bases_.state(archive);
  payload_.arrange(layers_);
  if (settings_.quantizer) projections_.state(archive);
}

std::uint64_t GradiVeQ::fingerprint() const {
  const std::uint64_t parts[] = {step_, phase_step_, cycle_, compressing_ ? 1U : 0U,
                                 bases_.fingerprint()};
  return checksum(std::as_bytes(std::span(parts)));
}

}  // namespace

std::unique_ptr<Method> make_gradiveq(const GradiveqSettings& settings, const MethodSetup& setup) {
  return std::make_unique<GradiVeQ>(settings, setup);
}

}  // namespace thinreduce

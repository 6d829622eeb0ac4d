#include "thinreduce/methods/gradiveq/gradiveq.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/bases.h"
#include "thinreduce/methods/gradiveq/learner.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// A compressed step, with g this rank's gradient of a slice, N ranks, and the layer's basis U:
//   sample    a few slices are sent whole, the same on all ranks      learner.cc
//   vote      for a new basis, where the samples lose too much        learner.cc, layer.h
//   project   g' = U^T (g - weight * mean / N)                        sum.cc
//   sum       g' and the whole slices over the ranks                  sum.cc, projections.cc
//   rebuild   (U * sum + weight * mean) / N replaces g                sum.cc
//   learn     the samples enter the mean and the second moments       learner.cc, basis.cc
//   renew     keepers turn moments into bases and send them to all    bases.cc
//   residual  what the old basis did not send, for the new one        layer.cc

// Votes renew a basis at most this many times per interval.
constexpr std::uint64_t kRenewalsPerInterval = 8;

class GradiVeQ final : public Method {
 public:
  GradiVeQ(const GradiveqSettings& settings, const MethodSetup& setup)
      : state_(settings, setup), sum_(state_, setup) {}

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == state_.mean.size(),
           "gradiveq: the size of a bucket must not change", bucket.values.size(),
           state_.mean.size());
    if (taken_back_) {
      kernels::add(bucket.values, state_.kept);
      std::ranges::fill(state_.kept, 0.0f);
      taken_back_ = false;
    }
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
  using Layers = std::vector<std::size_t>;  // indices

  // Until the last exchange has succeeded, all ranks keep what they must have alike, and this rank
  // can take its gradient back.
  void compressed_step(std::span<float> values, Exchange& exchange) {
    Layers due;
    std::vector<NewBasis> bases;
    try {
      exchange.timed(Stage::encode, [&] {
        choose_slices(state_, step_);
        measure_loss(state_, values, 1.0f / static_cast<float>(exchange.size()));
        sum_.start(values, exchange);
      });
      sum_.reduce(step_, exchange);
      due = due_layers(exchange);
      if (!settings_.phases) {
        exchange.timed(Stage::decode, [&] { learn(state_, sum_); });
        bases = exchange_bases(state_, due, exchange);
      }
    } catch (...) {
      if (settings_.feedback) {
        sum_.take_back(values);
        taken_back_ = true;
      }
      throw;
    }
    // Nothing can fail from here on.
    exchange.statistics["loss"] = lost_fraction(state_);
    exchange.timed(Stage::decode, [&] {
      if (!settings_.phases) move_means(state_, sum_);
      sum_.finish();
      finish_compressed(due, bases);
    });
  }

  // The first steps, and with `phases` some steps per cycle: sends everything uncompressed, and
  // learns the next bases from it.
  void uncompressed_step(std::span<float> values, Exchange& exchange) {
    auto& kept = state_.kept;
    exchange.timed(Stage::encode, [&] {
      if (kept.empty()) return;
      // `kept` holds the gradient too until the exchange has succeeded.
      kernels::add(kept, values);
      std::copy(kept.begin(), kept.end(), values.begin());
    });
    sum_floats(exchange, values, 1.0f);
    const std::uint64_t steps = settings_.uncompressed_steps(cycle_ == 0);
    const std::uint64_t first = settings_.phases ? steps - settings_.collect : 0;
    const Collection collection{step_, phase_step_ - first, steps - first};
    const bool collects = phase_step_ >= first;
    exchange.timed(Stage::decode, [&] {
      require_finite_sum(exchange, values, "element");
      if (collects) learn(state_, values, collection);
    });
    const bool last = phase_step_ + 1 >= steps;
    Layers due;
    for (const GradiveqLayer& layer : state_.layers) {
      if (last && layer.slicing().slices() > 0) due.push_back(layer.number);
    }
    std::vector<NewBasis> bases;
    if (last) bases = exchange_bases(state_, due, exchange);
    // Nothing can fail from here on.
    exchange.timed(Stage::decode, [&] {
      std::fill(kept.begin(), kept.end(), 0.0f);
      if (collects) move_means(state_, values, collection);
      kernels::scale(values, 1.0f / static_cast<float>(exchange.size()));
      adopt_all(bases);
    });
    phase_step_ = last ? 0 : phase_step_ + 1;
    compressing_ = last;
  }

  void adopt_all(std::vector<NewBasis>& bases) noexcept {
    for (NewBasis& basis : bases) adopt(std::move(basis), step_, state_.layers[basis.layer]);
  }

  // Returns the layers whose basis ends with this step. With `running`, most ranks voted for a new
  // one, or it is their turn, spread over the interval. With `phases`, any layer ends the phase.
  [[nodiscard]] Layers due_layers(const Exchange& exchange) const {
    Layers due;
    for (const GradiveqLayer& layer : state_.layers) {
      const std::uint64_t turn = layer.number * settings_.interval / state_.layers.size();
      const bool in_turn = !settings_.phases && (phase_step_ + 1 + turn) % settings_.interval == 0;
      const bool ends = voted_out(layer, exchange) || in_turn;
      if (ends && layer.slicing().slices() > 0) due.push_back(layer.number);
    }
    return due;
  }

  // Returns whether most ranks voted for a new basis of a layer whose basis is not too new.
  [[nodiscard]] bool voted_out(const GradiveqLayer& layer, const Exchange& exchange) const {
    const float votes = sum_.vote_sums()[layer.number];
    const auto world = static_cast<float>(exchange.size());
    if (!(votes >= 0 && votes <= world)) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("gradiveq: bucket {}, step {}: {} votes of {} ranks for a new basis "
                              "of tensor '{}'; a rank sent invalid data",
                              state_.bucket, step_, votes, exchange.size(), layer.name));
    }
    const std::uint64_t pause =
        std::max<std::uint64_t>(1, settings_.interval / kRenewalsPerInterval);
    return 2 * votes > world && step_ - layer.renewed_at >= pause;
  }

  // Ends the bases that are due. With `phases`, one or the interval ends all of them.
  void finish_compressed(const Layers& due, std::vector<NewBasis>& bases) {
    for (auto& layer : state_.layers) layer.fresh = !layer.compressed();
    ++phase_step_;
    for (const auto l : due) to_residual(state_.layers[l], state_.kept, state_.scratch.front());
    adopt_all(bases);
    if (!settings_.phases || (phase_step_ < settings_.interval && due.empty())) return;
    for (auto& layer : state_.layers) layer.fresh = true;
    compressing_ = false;
    phase_step_ = 0;
    ++cycle_;
  }

  std::uint64_t step_ = 0;
  std::uint64_t phase_step_ = 0;  // steps since compressing began or ended
  std::uint64_t cycle_ = 0;       // times that compressing ended
  bool compressing_ = false;
  GradiveqState state_;
  const GradiveqSettings& settings_ = state_.settings;
  // True after a step that failed: `kept` is to be added to the next gradient as it is. How the
  // layers are sent stays as it was then, because other ranks may have failed before they began
  // the step.
  bool taken_back_ = false;
  GradiveqSum sum_;
};

void GradiVeQ::add_residual(std::span<float> values) {
  std::vector<float> residual = state_.kept;
  if (residual.empty()) return;
  if (!taken_back_) to_residual(state_, residual);
  kernels::add(values, residual);
}

void GradiVeQ::state(Archive& archive) {
  auto& kept = state_.kept;
  std::size_t layers = state_.layers.size();
  archive.count("step", step_, Archive::kMaxSteps);
  // A step that failed may be counted in its phase already.
  archive.count("phase step", phase_step_, step_ + 1);
  archive.count("cycle", cycle_, step_ + 1);
  archive.flag("compressing", compressing_);
  archive.count("layers", layers, Archive::kMaxSteps);
  if (layers != state_.layers.size()) {
    throw Error(
        ErrorCode::bad_state,
        fmt::format("gradiveq: bucket {} has {} tensors to compress, {} in the state; load the "
                    "state of the same model and buckets",
                    state_.bucket, state_.layers.size(), layers));
  }
  if (const auto end = settings_.uncompressed_steps(cycle_ == 0);
      archive.loading() && !compressing_ && phase_step_ > end) {
    throw Error(
        ErrorCode::bad_state,
        fmt::format(
            "gradiveq: the saved 'phase step' is {}, must be at most {}; the state is damaged: "
            "use another checkpoint",
            phase_step_, end));
  }
  archive.replicated("mean", state_.mean, Archive::Length::per_element);
  archive.check_range("mean", state_.mean, {-kMaxMean, kMaxMean});
  // A rank that stands for several has both fields, if only some of them had failed.
  if (archive.loading()) taken_back_ = false;
  std::vector<float> other(taken_back_ ? kept.size() : 0);
  if (settings_.feedback) {
    archive.summed("kept", taken_back_ ? other : kept);
    archive.summed("taken back", taken_back_ ? kept : other, Archive::Length::per_element_or_none);
  }
  for (GradiveqLayer& layer : state_.layers) layer.state(archive);
  if (!archive.loading() || other.empty()) return;
  to_residual(state_, kept);
  for (GradiveqLayer& layer : state_.layers) std::ranges::fill(layer.owed, 0.0f);
  kernels::add(kept, other);
  taken_back_ = true;
}

std::uint64_t GradiVeQ::fingerprint() const {
  const std::uint64_t schedule[] = {step_, phase_step_, cycle_, compressing_ ? 1U : 0U};
  std::uint64_t hash = checksum(std::as_bytes(std::span(schedule)));
  for (const GradiveqLayer& layer : state_.layers) {
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

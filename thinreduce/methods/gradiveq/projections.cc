#include "thinreduce/methods/gradiveq/projections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"

namespace thinreduce {
namespace {

// In an order that does not depend on the vector width. Gradients near the largest float have
// products beyond it.
float bounded_dot(std::span<const float> a, std::span<const float> b) {
  constexpr double kMost = 1e30;
  std::array<double, 8> sums{};
  for (std::size_t i = 0; i < a.size(); ++i) {
    sums[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return static_cast<float>(std::clamp(sum, -kMost, kMost));
}

}  // namespace

void GradiveqProjections::arrange(std::span<const GradiveqLayer> layers) {
  layers_ = layers;
  begin_.assign(layers.size() + 1, 0);
  owed_.resize(settings_.feedback ? layers.size() : 0);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::size_t floats =
        layers[l].compressed() ? layers[l].slicing().slices() * layers[l].basis.rank() : 0;
    begin_[l + 1] = begin_[l] + floats;
    if (settings_.feedback && owed_[l].size() != floats) owed_[l].assign(floats, 0.0f);
  }
  if (quantizer_ && own_.size() == begin_.back()) return;
  quantizer_ = settings_.make(begin_.back(), setup_);
  for (auto* values : {&own_, &sum_, &sent_}) values->assign(begin_.back(), 0.0f);
}

// Calls visit(place in the layer, first float of the tile, floats of the tile from one to the next)
// for the run's part of each coordinate.
template <typename Visit>
void GradiveqProjections::for_runs(const Run& run, Visit visit) const {
  const std::size_t slices = layers_[run.layer].slicing().slices();
  const std::size_t rank = layers_[run.layer].basis.rank();
  for (std::size_t j = 0; j < rank; ++j) visit(j * slices + run.slice, j, rank);
}

void GradiveqProjections::send(const Run& run, std::span<const float> tile) {
  for_runs(run, [&](std::size_t place, std::size_t first, std::size_t stride) {
    float* out = &own_[begin_[run.layer] + place];
    for (std::size_t i = 0; i < run.count; ++i) out[i] = tile[first + i * stride];
    if (owed_.empty()) return;
    const float* owed = &owed_[run.layer][place];
    for (std::size_t i = 0; i < run.count; ++i) out[i] += owed[i];
  });
}

void GradiveqProjections::skip(const Run& run) {
  for_runs(run, [&](std::size_t place, std::size_t, std::size_t) {
    std::fill_n(&own_[begin_[run.layer] + place], run.count, 0.0f);
  });
}

void GradiveqProjections::sum(const Run& run, std::span<float> tile) const {
  for_runs(run, [&](std::size_t place, std::size_t first, std::size_t stride) {
    const float* in = &sum_[begin_[run.layer] + place];
    for (std::size_t i = 0; i < run.count; ++i) tile[first + i * stride] = in[i];
  });
}

void GradiveqProjections::owed(const Run& run, std::span<float> tile) const {
  for_runs(run, [&](std::size_t place, std::size_t first, std::size_t stride) {
    const float* in = &owed_[run.layer][place];
    for (std::size_t i = 0; i < run.count; ++i) tile[first + i * stride] = in[i];
  });
}

void GradiveqProjections::forget_owed(const Run& run) {
  for_runs(run, [&](std::size_t place, std::size_t, std::size_t) {
    std::fill_n(&owed_[run.layer][place], run.count, 0.0f);
  });
}

void GradiveqProjections::exchange(std::span<const std::vector<WholeSlice>> whole,
                                   std::uint64_t step, Exchange& exchange,
                                   std::span<float> moments) {
  if (!own_.empty()) quantizer_->reduce({.own = own_, .sum = sum_, .sent = sent_}, step, exchange);
  if (!settings_.feedback) return;
  exchange.timed(Stage::encode, [&] {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (const WholeSlice& slice : whole[l]) {
        for_runs({l, slice.slice, 1}, [&](std::size_t place, std::size_t, std::size_t) {
          own_[begin_[l] + place] = owed_[l][place];
          sent_[begin_[l] + place] = 0;
        });
      }
      const std::size_t floats = begin_[l + 1] - begin_[l];
      const auto own = std::span<const float>(own_).subspan(begin_[l], floats);
      const auto sent = std::span<const float>(sent_).subspan(begin_[l], floats);
      moments[2 * l] = bounded_dot(own, sent);
      moments[2 * l + 1] = bounded_dot(sent, sent);
    }
  });
}

bool GradiveqProjections::finite() const {
  return kernels::first_nonfinite(sum_) == sum_.size();
}

void GradiveqProjections::finish(std::span<const float> moment_sums) {
  for (std::size_t l = 0; l < layers_.size() && settings_.feedback; ++l) {
    const float wanted = moment_sums[2 * l];
    const float sent = moment_sums[2 * l + 1];
    const float factor = sent > 0 ? std::clamp(wanted / sent, 0.0f, 1.0f) : 1.0f;
    const std::size_t begin = begin_[l];
    for (std::size_t i = 0; i < begin_[l + 1] - begin; ++i) {
      sum_[begin + i] *= factor;
      owed_[l][i] = own_[begin + i] - sent_[begin + i] * factor;
    }
  }
}

void GradiveqProjections::state(Archive& archive) {
  for (std::size_t l = 0; l < owed_.size(); ++l) {
    archive.summed("owed", owed_[l], Archive::Length::any);
    const std::size_t floats = begin_[l + 1] - begin_[l];
    if (owed_[l].size() != floats || kernels::first_nonfinite(owed_[l]) != floats) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("gradiveq: {} projections of tensor '{}' are owed in the state, "
                              "where its basis makes {}",
                              owed_[l].size(), layers_[l].name, floats));
    }
  }
}

}  // namespace thinreduce

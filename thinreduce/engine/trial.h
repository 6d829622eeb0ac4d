// One candidate of `auto` on one sample of a bucket: its times, its bytes and its mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/plan/cost.h"

namespace thinreduce {

// Makes the exchange of one trial.
using MakeExchange = std::function<Exchange(const FrameId& id)>;

// Returns the squared error of `mean` relative to the sum of squares of `exact`.
[[nodiscard]] double relative_error(std::span<const float> mean, std::span<const float> exact);

// Replaces each rank's figures by the largest of any rank. All ranks must call it.
void agree_on_figures(Exchange& exchange, std::span<TrialFigures* const> figures);

class Trial {
 public:
  struct Setup {
    const MakeExchange& make_exchange;
    std::uint64_t seed = 0;
    FrameId id;        // of the bucket
    double times = 1;  // how many times larger the bucket is than its sample
  };

  // `sample` and what the setup refers to must outlive this.
  Trial(const Setup& setup, const Spec& spec, std::span<const float> sample);

  // Reduces the sample this many times more, and returns the shortest times of all runs: a machine
  // that is busy for a moment only ever makes a run look slower.
  const TrialFigures& run(int times);
  [[nodiscard]] int runs() const { return runs_; }
  // Returns the mean of the first run.
  [[nodiscard]] std::span<const float> mean() const { return first_mean_; }

 private:
  [[nodiscard]] TrialFigures run_once();

  Setup setup_;
  const Spec& spec_;
  std::span<const float> sample_;
  std::unique_ptr<Method> method_;
  TrialFigures shortest_;
  int runs_ = 0;
  std::vector<float> mean_;
  std::vector<float> first_mean_;
};

}  // namespace thinreduce

#include "apps/train/bench_second_moment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "apps/terminal.h"
#include "apps/train/feed.h"
#include "apps/train/gradient_buckets.h"
#include "apps/train/models.h"
#include "apps/train/second_moment.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::train {

int bench_second_moment(const TrainOptions& given) {
  TrainOptions options = given;
  if (!options.steps) options.steps = 30;
  settle(options, 1, options.batch.value_or(find_model(options.model).batch));
  at::set_num_threads(*options.threads);
  const auto network = make_network(options.model, options.seed);
  GradientBuckets buckets(*network, options.bucket_floats, 0);
  // Noise; characters and labels are digits.
  Samples samples = empty_samples(find_model(options.model), *options.batch);
  if (samples.inputs.is_floating_point()) {
    samples.inputs.normal_();
  } else {
    samples.inputs.random_(10);
  }
  samples.targets.random_(10);

  struct Times {
    std::vector<double> forward;
    std::vector<double> backward;
  };
  const auto pass = [&](Times* times) {
    const auto start = Clock::now();
    const auto loss = mean_loss(network->forward(samples.inputs), samples.targets, 0);
    const auto middle = Clock::now();
    buckets.begin([](const BucketLayout&, std::span<float>) {});
    loss.backward();
    buckets.end();
    if (times == nullptr) return;
    times->forward.push_back(Seconds(middle - start).count());
    times->backward.push_back(Seconds(Clock::now() - middle).count());
  };
  Times plain;
  Times squared;
  apps::Progress progress("backward passes", *options.steps, options.json);
  // Both passes take turns, so that a busy machine slows both; the first passes warm up.
  constexpr std::uint64_t kWarmup = 2;
  for (std::uint64_t step = 0; step < *options.steps + kWarmup; ++step) {
    const bool timed = step >= kWarmup;
    pass(timed ? &plain : nullptr);
    SecondMoments moments(*network, buckets.layouts());
    pass(timed ? &squared : nullptr);
    if (timed) progress.advance();
  }
  const double without = apps::median(plain.backward);
  const double with = apps::median(squared.backward);
  const double forward = apps::median(plain.forward);
  const Json result{{"model", options.model},
                    {"batch", *options.batch},
                    {"threads", *options.threads},
                    {"steps", *options.steps},
                    {"forward_seconds", forward},
                    {"backward_seconds", without},
                    {"with_second_moment_seconds", with},
                    {"added_to_backward", with / without - 1},
                    {"added_to_step", (with - without) / (forward + without)}};
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print(
        "{}, batch {}, {} threads: backward takes {:.1f} ms, with second moments {:.1f} ms: {:.0f} "
        "% "
        "more for backward, {:.0f} % more for forward and backward; medians of {} passes\n",
        options.model, *options.batch, *options.threads, without * 1e3, with * 1e3,
        (with / without - 1) * 100, (with - without) / (forward + without) * 100, *options.steps);
  }
  return 0;
}

}  // namespace thinreduce::train

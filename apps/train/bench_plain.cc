#include "apps/train/bench_plain.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "apps/terminal.h"
#include "apps/train/feed.h"
#include "apps/train/models.h"
#include "apps/train/optimizer.h"
#include "apps/train/replica.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::train {
namespace {

// The usual training loop.
class PlainLoop {
 public:
  PlainLoop(const TrainOptions& options, const Dataset& data)
      : label_smoothing_(*options.label_smoothing),
        feed_(make_feed(options, data, 0, 1)),
        network_(make_network(options.model, options.seed)),
        optimizer_(make_optimizer(options, *network_)) {}

  double step(std::uint64_t step) {
    const Samples& samples = feed_->training(step);
    optimizer_->zero_grad();
    const auto loss =
        mean_loss(network_->forward(samples.inputs), samples.targets, label_smoothing_);
    loss.backward();
    optimizer_->step();
    return loss.item<double>();
  }

 private:
  double label_smoothing_;
  std::unique_ptr<Feed> feed_;
  std::shared_ptr<Network> network_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

int bench_plain(const TrainOptions& given, const Dataset& data) {
  TrainOptions options = given;
  options.method = "fp32";
  if (!options.steps) options.steps = 100;
  settle(options, 1, training_samples(options, data));
  at::set_num_threads(*options.threads);
  PlainLoop plain(options, data);
  Replica replica(options, data, std::move(connect_threads(1)[0]));
  apps::Progress progress("steps", *options.steps, options.json);
  std::vector<double> plain_seconds;
  std::vector<double> our_seconds;
  double plain_loss = 0;
  double our_loss = 0;
  const auto timed = [](auto&& work) {
    const auto start = Clock::now();
    work();
    return Seconds(Clock::now() - start).count();
  };
  // Both loops take turns, so that a busy machine slows both; the first steps warm up.
  constexpr std::uint64_t kWarmup = 3;
  for (std::uint64_t step = 0; step < *options.steps + kWarmup; ++step) {
    const double theirs = timed([&] { plain_loss = plain.step(step); });
    const double ours = timed([&] {
      our_loss = replica.step({.step = step, .learning_rate = *options.learning_rate}).loss;
    });
    if (step < kWarmup) continue;
    plain_seconds.push_back(theirs);
    our_seconds.push_back(ours);
    progress.advance();
  }
  const auto batch = static_cast<double>(*options.batch);
  const double theirs = batch / apps::median(plain_seconds);
  const double ours = batch / apps::median(our_seconds);
  const Json result{{"model", options.model},
                    {"batch", *options.batch},
                    {"threads", *options.threads},
                    {"steps", *options.steps},
                    {"plain_samples_per_second", theirs},
                    {"thinreduce_samples_per_second", ours},
                    {"ratio", ours / theirs},
                    {"plain_loss", plain_loss},
                    {"thinreduce_loss", our_loss}};
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print(
        "{}, batch {}, {} threads: {:.1f} samples/s in plain libtorch, {:.1f} with thinreduce "
        "(ratio {:.3f}); medians of {} steps\n",
        options.model, *options.batch, *options.threads, theirs, ours, ours / theirs,
        *options.steps);
  }
  return 0;
}

}  // namespace thinreduce::train

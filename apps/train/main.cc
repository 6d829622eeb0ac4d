// `thinreduce train`: a real network on real data, its gradients reduced by any method. A program
// of its own, because loading torch takes longer than most other commands run.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <mutex>

#include "apps/program.h"
#include "apps/terminal.h"
#include "apps/train/bench_plain.h"
#include "apps/train/bench_second_moment.h"
#include "apps/train/dataset.h"
#include "apps/train/model_info.h"
#include "apps/train/run_folder.h"
#include "apps/train/trainer.h"
#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

volatile std::sig_atomic_t stop_signals = 0;

// The first asks the ranks to finish their step and save; the second means it.
void on_signal(int /*signal*/) {
  if (stop_signals != 0) ::_exit(apps::kFailed);
  stop_signals = 1;
}

struct Arguments {
  TrainOptions options;
  std::string link = "unlimited";
  double timeout = 120;
  bool fetch_only = false;
  bool bench_plain = false;
  bool bench_second_moment = false;
};

void add_options(CLI::App& app, Arguments& arguments) {
  TrainOptions& options = arguments.options;
  app.option_defaults()->always_capture_default();
  std::vector<std::string> names;
  for (const ModelInfo& model : models()) names.push_back(model.name);

  auto* what = app.add_option_group("What is trained (kept by --resume)");
  what->add_option("--data", options.data, "mnist or cifar10 (default: the model's)")
      ->check(CLI::IsMember({"mnist", "cifar10"}));
  what->add_option("--model", options.model, "the network")->check(CLI::IsMember(names));
  what->add_option("--method", options.method, "how gradients travel, e.g. topk:density=0.01")
      ->type_name("SPEC");
  what->add_option("--epochs", options.epochs, "how often every image is seen")
      ->check(CLI::Range(1e-6, 1e6));
  what->add_option("--steps", options.steps, "steps instead of epochs");
  what->add_option("--batch", options.batch, "images a rank and step")
      ->check(CLI::Range(1, 100000));
  what->add_option("--seed", options.seed, "of the parameters, the order, crops and flips");
  what->add_option("--optimizer", options.optimizer, "sgd or adam")
      ->check(CLI::IsMember({"sgd", "adam"}));
  what->add_option("--learning-rate,--lr", options.learning_rate,
                   "at its peak (default: what suits the model)")
      ->check(CLI::Range(0.0, 1e6));
  what->add_option("--momentum", options.momentum, "of sgd")->check(CLI::Range(0.0, 0.9999));
  what->add_option("--weight-decay", options.weight_decay, "(default: what suits the model)")
      ->check(CLI::Range(-1.0, 10.0));
  what->add_option("--schedule", options.schedule, "of the learning rate")
      ->check(CLI::IsMember({"constant", "step", "cosine", "onecycle"}));
  what->add_option("--augment", options.augment, "random crop and flip (auto: for cifar10)")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  what->add_option("--bucket-floats", options.bucket_floats, "a bucket's size")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32U));
  what->add_option("--min-elements", options.min_elements,
                   "smaller tensors travel uncompressed, as do 1-D ones");
  what->add_option("--warmup-steps", options.warmup_steps, "first steps that travel uncompressed");
  what->add_option("--evaluate-every", options.evaluate_every,
                   "steps (default: ten times, or every epoch if there are more)");
  what->add_option("--evaluate-samples", options.evaluate_samples,
                   "test images of an evaluation; the last one takes all")
      ->check(CLI::Range(1, 10000));
  what->add_option("--check-every", options.check_every,
                   "steps between comparisons of the replicas")
      ->check(CLI::Range(1, 1000000));
  what->add_option("--threads", options.threads,
                   "of a rank (default: 1, or all cores for a single rank)")
      ->check(CLI::Range(0, 1024));

  auto* resume = app.add_option("--resume", options.resume, "continue a run, with its settings")
                     ->type_name("RUN");
  for (auto* option : what->get_options()) {
    if (!option->get_lnames().empty()) option->excludes(resume);
  }
  app.add_option("--ranks", options.launch.ranks, "how many ranks (default: 4)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--transport", options.launch.transport,
                 "threads of this process, processes over gloo, or processes over mpi")
      ->check(CLI::IsMember({"threads", "gloo", "mpi"}));
  app.add_option("--link", arguments.link,
                 "simulate a link a rank: bandwidth[,latency], e.g. 100mbit,5ms");
  app.add_option("--interface", options.launch.interface, "network interface for gloo, e.g. eth1");
  app.add_option("--timeout", arguments.timeout, "seconds a silent peer is waited for")
      ->check(CLI::Range(0.01, 1e6));
  app.add_option("--out", options.out, "run folder (default: runs/<data>-<model>-<method>-<n>)")
      ->excludes(resume);
  app.add_flag("--overwrite", options.overwrite, "replace the run that is in the folder");
  app.add_option("--stop-after", options.stop_after, "stop after this step as Ctrl-C would");
  app.add_option("--save-gradients", options.save_gradients,
                 "record what each rank computed, for `bench codec --gradients`")
      ->type_name("DIR");
  app.add_option("--save-every", options.save_every, "steps between recorded ones")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--data-dir", options.data_dir,
                 "where images are kept (default: THINREDUCE_DATA, or the user's cache)");
  app.add_flag("--fetch-only", arguments.fetch_only, "get the images and stop");
  app.add_flag("--bench-plain", arguments.bench_plain,
               "time --steps steps of one rank against the same loop without thinreduce");
  app.add_flag("--bench-second-moment", arguments.bench_second_moment,
               "time --steps backward passes of one rank with and without per-sample squares");
  app.add_flag("--json", options.json, "print the summary as JSON, for scripts");
}

// The data of this process, loaded by the first rank that needs it.
class SharedData {
 public:
  const Dataset& get(const TrainOptions& options) {
    const std::lock_guard lock(mutex_);
    if (!data_) {
      const auto cache = options.data_dir.empty() ? default_cache() : options.data_dir;
      data_ = std::make_unique<Dataset>(load_dataset(options.data, cache));
    }
    return *data_;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Dataset> data_;
};

void print_summary(const Json& summary) {
  const auto number = [&](const char* key) { return summary[key].get<double>(); };
  if (summary["status"] == "interrupted") {
    fmt::print("interrupted after step {}; continue with: thinreduce train --resume {}\n",
               summary["steps"].get<std::uint64_t>(), summary["run"].get<std::string>());
    return;
  }
  fmt::print("accuracy {:.2f} %, {} steps in {}, {} sent, gradients {:.1f}x smaller: {}\n",
             number("accuracy") * 100, summary["steps"].get<std::uint64_t>(),
             apps::show_seconds(number("seconds")), apps::show_bytes(number("bytes_sent_total")),
             number("ratio"), summary["run"].get<std::string>());
}

int run(int argc, char** argv) {
  CLI::App app{"Train a network; its gradients travel by any method.", "thinreduce train"};
  Arguments arguments;
  TrainOptions& options = arguments.options;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : apps::kUsage;
  }
  options.launch.link = Link::parse(arguments.link);
  options.launch.timeout = Seconds(arguments.timeout);
  options.launch.arguments.assign(argv, argv + argc);
  options.interrupted = [] { return stop_signals != 0; };
  if (!options.resume.empty()) {
    if (app.count("--transport") == 0) options.launch.transport.clear();
    read_config(options.resume, options);
  } else if (app.count("--data") == 0) {
    options.data = find_model(options.model).data;
  }
  check(options);

  if (arguments.bench_second_moment) return bench_second_moment(options);
  SharedData data;
  if (arguments.fetch_only) {
    data.get(options);
    return 0;
  }
  if (arguments.bench_plain) return bench_plain(options, data.get(options));

  Outcome outcome;  // rank 0's, or this process's only rank's
  const int code = apps::launch(options.launch, [&](const std::shared_ptr<Transport>& transport) {
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    Outcome ended = train(options, data.get(options), transport);
    if (transport->rank() != 0 && options.launch.transport == "threads") return;
    outcome = std::move(ended);
    if (transport->rank() != 0) return;
    if (options.json) {
      fmt::print("{}\n", outcome.summary.dump(2));
    } else {
      print_summary(outcome.summary);
    }
  });
  return code == 0 && outcome.interrupted ? apps::kFailed : code;
}

}  // namespace
}  // namespace thinreduce::train

int main(int argc, char** argv) {
  return thinreduce::apps::guarded([&] { return thinreduce::train::run(argc, argv); });
}

// `thinreduce train`: trains a network and reduces its gradients with any method. A program of
// its own, because loading libtorch takes longer than most other commands run.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <mutex>
#include <string_view>
#include <vector>

#include "apps/command_line.h"
#include "apps/program.h"
#include "apps/terminal.h"
#include "apps/train/bench_plain.h"
#include "apps/train/bench_second_moment.h"
#include "apps/train/dataset.h"
#include "apps/train/model_info.h"
#include "apps/train/record_gradients.h"
#include "apps/train/run_folder.h"
#include "apps/train/trainer.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {
namespace {

volatile std::sig_atomic_t stop_signals = 0;

// The first signal asks the ranks to finish their step and save; the second ends the process.
void on_signal(int /*signal*/) {
  if (stop_signals != 0) ::_exit(apps::kFailed);
  stop_signals = 1;
}

volatile std::sig_atomic_t leave_signals = 0;

void on_leave(int /*signal*/) {
  leave_signals = 1;
}

struct Arguments {
  TrainOptions options;
  bool fetch_only = false;
  bool bench_plain = false;
  bool bench_second_moment = false;
};

constexpr const char* kSettings = "Training settings (a resumed run keeps its own)";
constexpr double kNoLimit = 1e18;
// Up to here a double represents every whole number exactly.
constexpr double kLargestExact = 9007199254740991;

using apps::not_empty;
using apps::number;
using apps::one_of;
using apps::whole_number;

void add_training_options(CLI::App& app, TrainOptions& options) {
  std::vector<std::string> names;
  for (const ModelInfo& model : models()) names.push_back(model.name);
  app.add_option("--model", options.model, "Network to train.")
      ->type_name("NAME")
      ->transform(one_of(names));
  app.add_option("--data", options.data, "Data set; must be the one that --model needs.")
      ->type_name("NAME")
      ->transform(one_of(data_sets()))
      ->default_str("the model's");
  app.add_option("--method", options.method,
                 "Method that reduces the gradients, for example topk:density=0.01, or auto, which "
                 "chooses one; `thinreduce methods` lists them.")
      ->type_name("SPEC");
  app.add_option("--epochs", options.epochs, "Number of passes over the training data.")
      ->type_name("X")
      ->transform(number(1e-6, 1e6));
  app.add_option("--steps", options.steps, "Number of steps; overrides --epochs.")
      ->type_name("N")
      ->transform(whole_number(1, kNoLimit))
      ->default_str("from --epochs");
  app.add_option("--batch", options.batch, "Images or windows of text per rank and step.")
      ->type_name("N")
      ->transform(whole_number(1, 100000))
      ->default_str("the model's");
  app.add_option("--seed", options.seed,
                 "Seed of the initial parameters, the order of the samples, crops, flips, and the "
                 "random numbers of the methods.")
      ->type_name("N")
      ->transform(whole_number(0, kLargestExact));
  app.add_option("--optimizer", options.optimizer, "Optimizer.")
      ->type_name("NAME")
      ->transform(one_of({"sgd", "adam", "adamw"}))
      ->default_str("the model's");
  app.add_option("--learning-rate,--lr", options.learning_rate,
                 "Peak learning rate of the schedule.")
      ->type_name("X")
      ->transform(number(0, 1e6))
      ->default_str("the model's; with another --optimizer 0.1 for sgd, 0.001 for adam and adamw");
  app.add_option(
         "--momentum", options.momentum,
         "Momentum of sgd; ignored by adam and adamw. Can't be given with a --method that applies "
         "momentum itself, such as sketch:momentum=0.9.")
      ->type_name("X")
      ->transform(number(0, 0.9999));
  app.add_option(
         "--weight-decay", options.weight_decay,
         "Weight decay: added to the gradient by sgd and adam, applied to the parameters by adamw.")
      ->type_name("X")
      ->transform(number(0, 10))
      ->default_str("the model's");
  app.add_option("--label-smoothing", options.label_smoothing,
                 "Part of a label's weight that is spread over all classes in the training loss.")
      ->type_name("X")
      ->transform(number(0, 1))
      ->default_str("the model's");
  app.add_option("--schedule", options.schedule, "Schedule of the learning rate.")
      ->type_name("NAME")
      ->transform(one_of({"constant", "step", "cosine", "onecycle"}));
  app.add_option("--augment", options.augment,
                 "Random crops and flips of the training images; auto turns them on for cifar10.")
      ->type_name("WORD")
      ->transform(one_of({"auto", "on", "off"}));
}

void add_exchange_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--bucket-floats", options.bucket_floats,
                 "Max bucket size in floats; a larger tensor gets its own bucket.")
      ->type_name("N")
      ->transform(whole_number(1, 4294967296.0));
  app.add_option("--min-elements", options.min_elements,
                 "Tensors with fewer elements, and all 1-D tensors, are sent uncompressed.")
      ->type_name("N")
      ->transform(whole_number(0, kNoLimit));
  app.add_option("--warmup-steps", options.warmup_steps,
                 "Number of steps (with --local-steps: of rounds) at the start that are reduced "
                 "uncompressed.")
      ->type_name("N")
      ->transform(whole_number(0, kNoLimit));
  app.add_option("--local-steps", options.local_steps,
                 "Steps that every rank trains by itself before the ranks exchange the changes of "
                 "their parameters with --method; 0: gradients are exchanged in every step.")
      ->type_name("N")
      ->transform(whole_number(0, static_cast<double>(LocalStepsOptions::kMaxEvery)));
  app.add_option("--outer", options.outer,
                 "With --local-steps: the optimizer that applies the averaged changes: nesterov or "
                 "sgd, with lr and momentum, for example sgd,lr=1.")
      ->type_name("OPTIMIZER");
  app.add_option("--fragments", options.fragments,
                 "With --local-steps: number of parts into which the model is cut; one part is "
                 "exchanged at a time. Must be at most --local-steps and at most the number of "
                 "tensors.")
      ->type_name("N")
      ->transform(whole_number(1, 1000000));
  app.add_option(
         "--overlap", options.overlap,
         "With --local-steps: number of local steps that go on while an exchange runs; must be "
         "below --local-steps. 0: training waits for each exchange.")
      ->type_name("STEPS")
      ->transform(whole_number(0, 1000000));
  app.add_option("--local-start", options.local_start,
                 "With --local-steps: number of steps at the start whose gradients are exchanged "
                 "with --start-method; the first round of local steps follows.")
      ->type_name("STEPS")
      ->transform(whole_number(0, kNoLimit));
  app.add_option("--start-method", options.start_method,
                 "With --local-start: the method of these gradients; must keep no residual.")
      ->type_name("SPEC");
  app.add_option("--evaluate-every", options.evaluate_every,
                 "Steps between evaluations on test data.")
      ->type_name("N")
      ->transform(whole_number(1, kNoLimit))
      ->default_str("a tenth of the run, at most an epoch");
  app.add_option(
         "--evaluate-samples", options.evaluate_samples,
         "Test images, or windows of test text, per evaluation; the last one uses all of them.")
      ->type_name("N")
      ->transform(whole_number(1, 10000))
      ->default_str("2000 images or 400 windows");
  app.add_option("--check-every", options.check_every,
                 "Steps between checks that all ranks hold the same parameters.")
      ->type_name("N")
      ->transform(whole_number(1, 1000000));
  app.add_option(
         "--threads", options.threads,
         "Threads per rank that compute forward and backward, and as many that share the work of "
         "reducing a large bucket.")
      ->type_name("N")
      ->transform(whole_number(1, 1024))
      ->default_str("1, or all cores for a single rank");
}

void add_run_options(CLI::App& app, TrainOptions& options) {
  const char* group = "Run folder";
  app.add_option("--out", options.out,
                 "Run folder to write. In the default, N is the first free number.")
      ->type_name("DIR")
      ->transform(not_empty())
      ->default_str("runs/DATA-MODEL-METHOD-N")
      ->group(group);
  app.add_flag("--overwrite", options.overwrite,
               "Replaces the run or the recorded gradients that are in the folder.")
      ->group(group);
  app.add_option(
         "--resume", options.resume,
         "Run folder to continue, with the run's own settings and ranks. --transport and --link "
         "may differ from those of the run.")
      ->type_name("RUN")
      ->transform(not_empty())
      ->group(group);
  app.add_option("--stop-after", options.stop_after,
                 "Saves after this step and stops with exit code 1, as Ctrl-C does; --resume "
                 "continues.")
      ->type_name("STEP")
      ->transform(whole_number(1, kNoLimit))
      ->group(group);
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Steps between checkpoints, from which --resume continues after a crash.")
      ->type_name("STEPS")
      ->transform(whole_number(1, kNoLimit))
      ->default_str(fmt::format("once per epoch, and after {} s without one", kCheckpointSeconds))
      ->group(group);
  app.add_option("--save-gradients", options.save_gradients,
                 "Folder in which to record every rank's gradients, for `thinreduce bench codec "
                 "--gradients`.")
      ->type_name("DIR")
      ->transform(not_empty())
      ->group(group);
  app.add_option("--save-every", options.save_every,
                 "Steps between recorded gradients; used with --save-gradients.")
      ->type_name("N")
      ->transform(whole_number(1, 1000000))
      ->group(group);
  app.add_flag("--record-only", options.record_only,
               "With --save-gradients: writes no run folder and evaluates nothing. --stop-after "
               "ends the recording.")
      ->group(group);
}

void add_options(CLI::App& app, Arguments& arguments) {
  TrainOptions& options = arguments.options;
  app.add_flag("--json", options.json, "Prints the summary as JSON.");
  app.option_defaults()->group(kSettings);
  add_training_options(app, options);
  add_exchange_options(app, options);
  app.option_defaults()->group("Other");
  apps::add_launch_options(app, options.launch);
  add_run_options(app, options);
  app.add_flag("--elastic", options.elastic,
               "Ranks are local processes over Gloo that may die, leave and join: the others go on "
               "without a restart. A rank that crashes or gets SIGKILL is replaced; SIGUSR1 to the "
               "launcher adds one, SIGTERM to a rank makes it leave after its step. Can't be "
               "used with --local-steps or --save-gradients.");
  app.add_option(
         "--guard", options.guard,
         "The reaction to a rank whose gradient, in one bucket and step, has a norm of more "
         "than --guard-factor times the median of all ranks. report: the rank is printed; "
         "clip: its gradient is also scaled down to that many times the median; refuse: "
         "the run ends.")
      ->type_name("WORD")
      ->transform(one_of({"off", "report", "clip", "refuse"}));
  app.add_option("--guard-factor", options.guard_factor,
                 "How many times the median a norm may be, with --guard.")
      ->type_name("X")
      ->transform(number(1.0001, 1e9));
  app.add_option(
         "--data-dir", options.data_dir,
         "Folder that holds the data sets or receives them. By default $THINREDUCE_DATA, or "
         "a folder in the user's cache.")
      ->type_name("DIR")
      ->transform(not_empty());
  app.add_flag("--fetch-only", arguments.fetch_only, "Downloads the data and exits.");
  app.add_flag("--bench-plain", arguments.bench_plain,
               "Times --steps training steps of one rank, with thinreduce and in plain libtorch, "
               "instead of training.");
  app.add_flag(
      "--bench-second-moment", arguments.bench_second_moment,
      "Times --steps backward passes of one rank, with and without second moments, instead "
      "of training.");
}

// Returns whether the option was given.
bool is_given(const CLI::App& app, const char* option) {
  return app.get_option_no_throw(option) != nullptr && app.count(option) > 0;
}

// Throws for two options that ask for different work, and for options that such work ignores.
void check_work(const CLI::App& app) {
  const char* work = nullptr;
  for (const char* option :
       {"--fetch-only", "--bench-plain", "--bench-second-moment", "--record-only"}) {
    if (!is_given(app, option)) continue;
    if (work != nullptr) {
      throw Error(
          ErrorCode::bad_input,
          fmt::format("{} and {} ask for different work: leave out one of them", work, option));
    }
    work = option;
  }
  if (work == nullptr) return;
  std::vector<const char*> ignored{"--out", "--evaluate-every"};
  if (std::string_view(work) != "--record-only") {
    ignored.insert(ignored.end(), {"--resume", "--method", "--ranks", "--transport", "--link",
                                   "--simulate", "--local-steps", "--elastic"});
  }
  for (const char* option : ignored) {
    if (!is_given(app, option)) continue;
    throw Error(ErrorCode::bad_input,
                fmt::format("{} has no use for {}: leave out one of them", work, option));
  }
}

// Throws for options that contradict each other.
void check_options(const CLI::App& app) {
  check_work(app);
  if (app.count("--save-every") > 0 && app.count("--save-gradients") == 0) {
    throw Error(ErrorCode::bad_input,
                "--save-every needs --save-gradients DIR: add it, or leave out --save-every");
  }
  if (app.count("--guard-factor") > 0 && app.count("--guard") == 0) {
    throw Error(ErrorCode::bad_input,
                "--guard-factor needs --guard: add it, or leave out --guard-factor");
  }
  if (app.count("--record-only") > 0 && app.count("--save-gradients") == 0) {
    throw Error(ErrorCode::bad_input,
                "--record-only needs --save-gradients DIR: add it, or leave out --record-only");
  }
  if (app.count("--record-only") > 0 && app.count("--resume") > 0) {
    throw Error(ErrorCode::bad_input,
                "--record-only can't be used with --resume: leave out one of them");
  }
  if (app.count("--resume") == 0) return;
  if (app.count("--overwrite") > 0 && app.count("--save-gradients") == 0) {
    throw Error(ErrorCode::bad_input, "--resume continues a run: leave out --overwrite");
  }
  for (const CLI::Option* option : app.get_options()) {
    const bool contradicts = option->get_group() == kSettings || option->get_name() == "--out";
    if (!contradicts || option->count() == 0) continue;
    throw Error(ErrorCode::bad_input,
                fmt::format("--resume continues a run with the run's own settings: leave out {}",
                            option->get_name()));
  }
}

// Throws for settings that --elastic can't have, and turns Gloo on.
void check_elastic(const CLI::App& app, TrainOptions& options) {
  if (!options.elastic) return;
  for (const char* option : {"--local-steps", "--save-gradients", "--simulate"}) {
    if (!is_given(app, option)) continue;
    throw Error(ErrorCode::bad_input,
                fmt::format("--elastic can't be used with {}: leave out one of them", option));
  }
  if (app.count("--transport") > 0 && options.launch.transport != "gloo") {
    throw Error(ErrorCode::bad_input,
                fmt::format("--elastic starts ranks over gloo: leave out --transport {}",
                            options.launch.transport));
  }
  options.launch.transport = "gloo";
}

// Throws for a momentum that would be added twice.
void check_momentum(const CLI::App& app, const TrainOptions& options) {
  if (app.count("--momentum") == 0 || options.momentum == 0) return;
  const Spec spec = Spec::parse(options.method);
  const auto update = spec.update();
  if (!update) return;
  throw Error(ErrorCode::bad_input,
              fmt::format("{} applies momentum itself: leave out --momentum, or use --method {}:{}",
                          spec.info->name, spec.info->name, update->without));
}

// Throws for settings that don't exist or contradict each other. Those of a run that continues come
// from its file.
void check_settings(const TrainOptions& options) {
  if (options.resume.empty()) return check(options);
  try {
    check(options);
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_state,
                fmt::format("{}: {}", (options.resume / "config.json").string(), error.what()));
  }
}

// The data, loaded once per process by the first rank that needs them.
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
  const auto number_of = [&](const char* key) { return summary[key].get<double>(); };
  if (summary["status"] == "interrupted") {
    fmt::print("interrupted after step {}; continue with: thinreduce train --resume {}\n",
               summary["steps"].get<std::uint64_t>(), summary["run"].get<std::string>());
    return;
  }
  const std::string result = summary["metric"] == "loss"
                                 ? fmt::format("test loss {:.4f}", number_of("loss"))
                                 : fmt::format("accuracy {:.2f} %", number_of("accuracy") * 100);
  fmt::print("{}; {} steps in {}; {} sent per rank; compression ratio {:.1f}; run folder {}\n",
             result, summary["steps"].get<std::uint64_t>(),
             apps::show_seconds(number_of("seconds")),
             apps::show_bytes(number_of("bytes_sent_total")), number_of("ratio"),
             summary["run"].get<std::string>());
  if (const auto nested = summary["statistics"].value("nested_fraction", -1.0); nested >= 0) {
    fmt::print("{:.1f} % of the nested ranks' elements were sent in nested codes\n", 100 * nested);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Trains a network and reduces its gradients with --method.", "thinreduce train"};
  apps::prepare(app);
  Arguments arguments;
  TrainOptions& options = arguments.options;
  options.launch.timeout = Seconds(120);
  add_options(app, arguments);
  app.footer("Example: thinreduce train --model lenet --method topk --ranks 4 --link 100mbit,5ms");
  if (const auto code = apps::parse(app, argc, argv)) return *code;
  check_options(app);
  options.launch.arguments.assign(argv, argv + argc);
  options.interrupted = [] { return stop_signals != 0; };
  if (!options.resume.empty()) {
    const apps::LaunchOptions given = options.launch;
    read_config(options.resume, options);
    if (app.count("--ranks") > 0 && given.ranks != options.launch.ranks) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("{0} was trained on {1} ranks: leave out --ranks or give --ranks {1}",
                              options.resume.string(), options.launch.ranks));
    }
    if (app.count("--transport") > 0) options.launch.transport = given.transport;
    if (app.count("--link") > 0) options.launch.link = given.link;
  } else if (app.count("--data") == 0) {
    options.data = find_model(options.model).data;
  }
  check_elastic(app, options);
  check_momentum(app, options);
  check_settings(options);

  if (arguments.bench_second_moment) return bench_second_moment(options);
  SharedData data;
  if (arguments.fetch_only) {
    data.get(options);
    return 0;
  }
  if (arguments.bench_plain) return bench_plain(options, data.get(options));
  // An error is reported once, not by every rank, where this process starts them.
  if (!options.record_only && !apps::is_elastic_rank()) RunFolder::check_unused(options);
  if (options.launch.transport == "threads") data.get(options);

  if (options.record_only) {
    return apps::launch(options.launch, [&](const std::shared_ptr<Transport>& transport) {
      record_gradients(options, data.get(options), transport);
    });
  }
  Outcome outcome;  // of rank 0, or of the only rank in this process
  const auto show = [&] {
    if (outcome.summary.is_null()) return;
    if (options.json) {
      fmt::print("{}\n", outcome.summary.dump(2));
    } else {
      print_summary(outcome.summary);
    }
  };
  if (options.elastic) {
    const int code = apps::launch_elastic(options.launch, [&](apps::ElasticRank& rank) {
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_leave);
      outcome = train_elastic(options, data.get(options), rank, [] { return leave_signals != 0; });
      show();
    });
    return code == 0 && outcome.interrupted ? apps::kFailed : code;
  }
  const int code = apps::launch(options.launch, [&](const std::shared_ptr<Transport>& transport) {
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    Outcome ended = train(options, data.get(options), transport);
    if (transport->rank() != 0 && options.launch.transport == "threads") return;
    outcome = std::move(ended);
    if (transport->rank() == 0) show();
  });
  return code == 0 && outcome.interrupted ? apps::kFailed : code;
}

}  // namespace
}  // namespace thinreduce::train

int main(int argc, char** argv) {
  return thinreduce::apps::guarded([&] { return thinreduce::train::run(argc, argv); });
}

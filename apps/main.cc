// The command line. apps/program.h has the exit codes.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_gradients.h"
#include "apps/program.h"
#include "apps/resnet_layout.h"
#include "apps/train/model_info.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/version.h"

namespace thinreduce::apps {
namespace {

// Returns the specs, or all methods when there are none. Throws for a wrong one before any runs.
std::vector<std::string> checked_specs(std::vector<std::string> specs) {
  if (specs.empty()) {
    for (const MethodInfo& info : methods()) specs.push_back(info.name);
  }
  for (const auto& spec : specs) (void)Spec::parse(spec);
  return specs;
}

// Training needs libtorch, which takes longer to load than most commands run, so it is a program of
// its own beside this one. Returns only when that program can't be started.
int run_trainer(int argc, char** argv) {
  const std::string program = trainer_path();
  std::vector<char*> arguments(argv + 1, argv + argc);
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  fmt::print(
      stderr,
      "thinreduce: can't start {}: {}; `thinreduce train` needs libtorch-dev and libpng-dev: "
      "install them (make setup) and build again\n",
      program, std::strerror(errno));
  return kFailed;
}

void add_gradients_option(CLI::App& command, std::filesystem::path& folder) {
  command
      .add_option("--gradients", folder,
                  "Folder of gradients that `thinreduce train --save-gradients` recorded, to use "
                  "instead of a synthetic gradient.")
      ->type_name("DIR")
      ->transform(not_empty());
}

template <typename Options>
void add_bench_options(CLI::App& command, Options& options) {
  command
      .add_option("--method", options.specs,
                  "Method and options, for example topk:density=0.01; may be repeated. Without it, "
                  "all methods run with their defaults.")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command.add_option("--floats", options.floats, "Size of the gradient in floats.")
      ->type_name("N")
      ->transform(whole_number(1, 4294967296.0));
  command
      .add_option("--shapes", options.shapes,
                  "Shapes of the gradient's tensors: those of ResNet-50's layers, with widths "
                  "scaled to --floats, or none.")
      ->type_name("NAME")
      ->transform(one_of({"resnet50", "none"}))
      ->default_str("resnet50, or none below 1e6 floats");
  command.add_option("--steps", options.steps, "Number of timed steps.")
      ->type_name("N")
      ->transform(whole_number(1, 10000));
  command
      .add_option("--warmup", options.warmup,
                  "Number of untimed steps before the timed ones; auto: the method's uncompressed "
                  "steps and one more.")
      ->type_name("N")
      ->transform(whole_number_or_auto(0, 1000000))
      ->default_str("auto");
  command
      .add_option("--threads", options.threads,
                  "Threads per rank that share the work on its gradient; the means have the same "
                  "bits for any number.")
      ->type_name("N")
      ->transform(whole_number(1, SessionOptions::kMaxThreads));
  command.add_flag("--json", options.json, "Prints the results as JSON.");
}

CLI::App* add_codec(CLI::App& bench, BenchCodecOptions& options) {
  auto* command = bench.add_subcommand(
      "codec", "Measures encoding and decoding on one rank: speed, payload size and error.");
  add_bench_options(*command, options);
  add_gradients_option(*command, options.gradients);
  command->footer(
      "Columns:\n"
      "  wire         Bytes of one payload.\n"
      "  ratio        Bytes of the gradient per byte of the payload.\n"
      "  encode, decode, memcpy\n"
      "               GB of gradient per second.\n"
      "  nmse         Squared error of a step's mean relative to its sum of squares. Methods with\n"
      "               error feedback send the error in later steps.\n"
      "\n"
      "Example: thinreduce bench codec --method topk:density=0.01 --floats 1e6");
  return command;
}

CLI::App* add_reduce(CLI::App& bench, BenchReduceOptions& options) {
  auto* command = bench.add_subcommand(
      "reduce", "Measures whole all-reduces between ranks, against uncompressed fp32.");
  add_bench_options(*command, options);
  command->add_flag(
      "--cycle", options.cycle,
      "Also times one whole cycle of the method: gradiveq's compressed and uncompressed steps "
      "from one new basis to the next; other methods have cycles of one step.");
  add_launch_options(*command, options.launch);
  command
      ->add_option_function<std::string>(
          "--simulate",
          [&](const std::string& text) { options.launch.simulate = ClusterLinks::parse(text); },
          "Virtual cluster: every rank gets a core and this link of its own, in virtual time, "
          "whatever this machine has. Ranks may differ: '1gbit,5ms;3=100mbit,40ms' gives rank 3 "
          "another link. Regions: '10gbit;0-3|4-7=1gbit,30ms' makes all messages between ranks "
          "0-3 and 4-7 share one link of 1 Gbit and 30 ms.")
      ->type_name("LINK")
      ->group("Ranks and link");
  command->footer(
      "Columns:\n"
      "  time         Median time of a step, of the slowest rank.\n"
      "  vs fp32      Time of fp32 in the same run, divided by this time.\n"
      "  sent/rank    Bytes that the busiest rank sends per step.\n"
      "  ratio        Bytes of the gradient per byte of one payload.\n"
      "  encode, wire, decode, wait\n"
      "               Parts of the time; wait: for the slowest rank to begin.\n"
      "  nmse         Squared error of a step's mean relative to its sum of squares. Methods with\n"
      "               error feedback send the error in later steps.\n"
      "  same bits    Whether all ranks have the same mean, bit by bit.\n"
      "\n"
      "Example: thinreduce bench reduce --method qsgd --ranks 4 --link 1gbit,1ms");
  return command;
}

void add_model_options(CLI::App& command, PlanOptions& options) {
  std::vector<std::string> names;
  for (const train::ModelInfo& model : train::models()) names.push_back(model.name);
  command
      .add_option("--model", options.model,
                  "Network of `thinreduce train` to plan for, in place of a synthetic gradient: "
                  "with its tensors and buckets, and with the gradients of the first steps of a "
                  "training on its data, which are computed before.")
      ->type_name("NAME")
      ->transform(one_of(names));
  command
      .add_option("--data-dir", options.data_dir,
                  "With --model: folder that holds the data sets or receives them, as in "
                  "`thinreduce train`.")
      ->type_name("DIR")
      ->transform(not_empty());
}

CLI::App* add_plan(CLI::App& app, PlanOptions& options) {
  auto* command = app.add_subcommand("plan",
                                     "Shows which methods auto chooses on a link, and the time, "
                                     "bytes and error of each candidate.");
  command
      ->add_option("--method", options.spec,
                   "auto with its options, for example auto:error=0.1,methods=dqsg+fft.")
      ->type_name("SPEC");
  command->add_option("--floats", options.floats, "Size of a synthetic gradient in floats.")
      ->type_name("N")
      ->transform(whole_number(1, 4294967296.0));
  add_gradients_option(*command, options.gradients);
  add_model_options(*command, options);
  command->add_flag("--probe", options.probe,
                    "Runs in real time on the network between the ranks. Without it, the ranks are "
                    "a virtual cluster: each has a core and the link of --link.");
  command
      ->add_option(
          "--compute", options.compute,
          "Seconds of forward, backward and optimizer per step; 0: not known. If a step would "
          "wait for the exchange at least as long as it computes, the plan recommends local steps.")
      ->type_name("SECONDS")
      ->transform(number(0, 1e6))
      ->default_str("0");
  command->add_flag("--json", options.json, "Prints the plan as JSON.");
  command
      ->add_option(
          "--html", options.html,
          "HTML page to write, with a chart of predicted times against the link's bandwidth.")
      ->type_name("FILE")
      ->transform(not_empty());
  add_launch_options(*command, options.launch);
  command->get_option("--link")
      ->description(
          "Link to plan for, BANDWIDTH[,LATENCY], for example 100mbit,15ms; required "
          "without --probe. With --probe it is emulated in real time.")
      ->default_str("");
  command->footer(
      "Columns:\n"
      "  error        Squared error of a step's mean relative to its sum of squares.\n"
      "  encode, wire, decode, latency\n"
      "               Predicted parts of the bucket's time.\n"
      "  in all       Time of the bucket alone on the link; its parts overlap.\n"
      "  exposed      Time that the step waits because backward does not hide it.\n"
      "  vs fp32      Exposed time of fp32, divided by this one.\n"
      "  sent/rank    Bytes that a rank sends per step.\n"
      "\n"
      "Example: thinreduce plan --link 100mbit,15ms --ranks 8 --model gpt");
  return command;
}

// Throws unless one source of gradients is given, or none.
void check_gradients(const CLI::App& command, const PlanOptions& options) {
  if (!options.gradients.empty() && command.count("--floats") > 0) {
    throw Error(ErrorCode::bad_input,
                "--floats does not apply to recorded gradients: leave out --floats or --gradients");
  }
  if (options.model.empty()) {
    if (options.data_dir.empty()) return;
    throw Error(ErrorCode::bad_input, "--data-dir needs --model: add it, or leave out --data-dir");
  }
  for (const char* option : {"--floats", "--gradients"}) {
    if (command.count(option) == 0) continue;
    throw Error(ErrorCode::bad_input,
                fmt::format("--model has gradients of its own: leave out --model or {}", option));
  }
  if (options.launch.transport == "threads") return;
  throw Error(ErrorCode::bad_input,
              fmt::format("--model computes the gradients of all ranks in one process: for "
                          "--transport {0}, record them with `thinreduce train --model {1} "
                          "--save-gradients DIR` on every machine, and give --gradients DIR",
                          options.launch.transport, options.model));
}

// A virtual cluster has the link that would otherwise be emulated.
void finish_plan(const CLI::App& command, PlanOptions& options) {
  if (!Spec::parse(options.spec).is_auto()) {
    throw Error(ErrorCode::bad_input,
                fmt::format("`thinreduce plan` works with --method auto and its options only; to "
                            "measure {0}, run `thinreduce bench reduce --method {0}`",
                            options.spec));
  }
  check_gradients(command, options);
  if (options.probe) return;
  if (options.launch.transport != "threads") {
    throw Error(ErrorCode::bad_input,
                fmt::format("--transport {} needs --probe: a virtual cluster has no network",
                            options.launch.transport));
  }
  if (command.count("--link") == 0) {
    throw Error(ErrorCode::bad_input,
                "give the link to plan for, for example --link 100mbit,15ms, or --probe to measure "
                "the network between the ranks");
  }
  if (ranks_of(options.launch) == 1) {
    throw Error(ErrorCode::bad_input,
                "one rank exchanges nothing, so there is nothing to plan: give --ranks 2 or more");
  }
  options.launch.simulate = ClusterLinks::parse(options.launch.link.to_string());
  options.launch.link = Link{};
}

CLI::App* add_report(CLI::App& app, ReportOptions& options) {
  auto* command = app.add_subcommand("report", "Compares training runs on one HTML page.");
  command
      ->add_option("RUN", options.runs, "Run folders that `thinreduce train` wrote, one or more.")
      ->type_name("")
      ->required();
  command
      ->add_option("-o,--output", options.output,
                   "HTML file to write; - writes the page, and no table, to standard output.")
      ->type_name("FILE")
      ->transform(not_empty());
  command
      ->add_option(
          "--codec", options.codec,
          "JSON that `thinreduce bench codec --gradients DIR --json` printed; adds a chart "
          "of error against size.")
      ->type_name("FILE");
  command->add_flag("--json", options.json, "Prints the summary table as JSON.");
  command->footer("Example: thinreduce report runs/* -o report.html");
  return command;
}

// The page and the table can't share standard output.
void check_report(const ReportOptions& options) {
  if (options.output != "-" || !options.json) return;
  throw Error(ErrorCode::bad_input,
              "-o - and --json both write to standard output: leave out --json or name a file");
}

// Recorded gradients have a size and a number of steps of their own.
void check_codec(const CLI::App& command) {
  if (command.count("--gradients") == 0) return;
  for (const char* option : {"--floats", "--steps", "--warmup"}) {
    if (command.count(option) == 0) continue;
    throw Error(ErrorCode::bad_input,
                fmt::format("{} does not apply to recorded gradients: leave out {} or --gradients",
                            option, option));
  }
}

template <typename Options>
void finish_shapes(const CLI::App& command, Options& options) {
  if (command.count("--shapes") == 0) options.shapes = default_shapes(options.floats);
  // Throws here once, not on every rank.
  static_cast<void>(bench_layout(options.shapes, options.floats));
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "train") return run_trainer(argc, argv);
  CLI::App app{"Averages gradients over all ranks with far fewer bytes on the wire.", "thinreduce"};
  prepare(app);
  app.set_version_flag("--version", std::string(version()), "Prints the version and exits.");
  app.require_subcommand(1);

  bool methods_json = false;
  std::string method_name;
  auto* methods_command =
      app.add_subcommand("methods", "Lists every method, or one, with its options and its paper.");
  methods_command->add_option("NAME", method_name, "Method to show.")
      ->type_name("")
      ->default_str("all of them");
  methods_command->add_flag("--json", methods_json, "Prints the list as JSON.");
  app.add_subcommand("train", "Trains a network and reduces its gradients with --method.");
  auto* bench = app.add_subcommand("bench", "Measures methods on this machine.");
  bench->require_subcommand(1);
  BenchCodecOptions codec;
  auto* codec_command = add_codec(*bench, codec);
  BenchReduceOptions reduce;
  auto* reduce_command = add_reduce(*bench, reduce);
  PlanOptions planned;
  auto* plan_command = add_plan(app, planned);
  ReportOptions page;
  auto* report_command = add_report(app, page);
  app.footer("`thinreduce COMMAND --help` explains a command.");
  if (const auto code = parse(app, argc, argv)) return *code;

  if (*methods_command) return list_methods(method_name, methods_json);
  if (*plan_command) {
    finish_plan(*plan_command, planned);
    planned.launch.arguments.assign(argv, argv + argc);
    return plan(planned);
  }
  if (*report_command) {
    check_report(page);
    return report(page);
  }
  if (*codec_command) {
    check_codec(*codec_command);
    finish_shapes(*codec_command, codec);
    codec.specs = checked_specs(codec.specs);
    for (const auto& spec : codec.specs) {
      if (!Spec::parse(spec).is_auto()) continue;
      throw Error(
          ErrorCode::bad_input,
          fmt::format("`thinreduce bench codec` has no link for which '{}' could choose a method: "
                      "name a method, or see `thinreduce plan`",
                      spec));
    }
    return bench_codec(codec);
  }
  finish_shapes(*reduce_command, reduce);
  reduce.specs = checked_specs(reduce.specs);
  reduce.launch.threads = reduce.threads;
  reduce.launch.arguments.assign(argv, argv + argc);
  return bench_reduce(reduce);
}

}  // namespace
}  // namespace thinreduce::apps

int main(int argc, char** argv) {
  return thinreduce::apps::guarded([&] { return thinreduce::apps::run(argc, argv); });
}

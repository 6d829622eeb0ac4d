// The command line. apps/program.h has the exit codes.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>

#include "apps/commands.h"
#include "apps/program.h"
#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::apps {
namespace {

// Specs as given, or every method's defaults; refuses what does not exist before anything starts.
std::vector<std::string> checked_specs(std::vector<std::string> specs) {
  if (specs.empty()) {
    for (const MethodInfo& info : methods()) specs.push_back(info.name);
  }
  for (const auto& spec : specs) (void)Spec::parse(spec);
  return specs;
}

void add_method_option(CLI::App& command, std::vector<std::string>& specs) {
  command
      .add_option("--method", specs,
                  "method and options, e.g. topk:density=0.01; may be repeated (default: all)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
}

// Training needs libtorch, which takes longer to load than most commands run: it is a program of
// its own beside this one. Returns only when that is not there.
int run_trainer(int argc, char** argv) {
  const std::string own = own_path();
  const std::string program = own.substr(0, own.rfind('/') + 1) + "thinreduce-train";
  std::vector<char*> arguments(argv + 1, argv + argc);
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  fmt::print(stderr,
             "thinreduce: can't start {}: {}; install libtorch-dev and libpng-dev (make setup) and "
             "build again\n",
             program, std::strerror(errno));
  return kFailed;
}

void add_warmup_option(CLI::App& command, int& warmup) {
  command
      .add_option("--warmup", warmup,
                  "untimed steps before; auto: until the method compresses, and one more")
      ->check(CLI::Range(0, 1000000))
      ->default_str("auto");
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "train") return run_trainer(argc, argv);
  CLI::App app{"Gradient all-reduce with far fewer bytes on the wire.", "thinreduce"};
  app.set_version_flag("--version", THINREDUCE_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();

  bool methods_json = false;
  auto* methods_command =
      app.add_subcommand("methods", "list every method, its options, its paper");
  methods_command->add_flag("--json", methods_json, "as JSON, for scripts");

  app.add_subcommand("train", "train a network over a thin link (see train --help)");

  auto* bench = app.add_subcommand("bench", "measure on this machine");
  bench->require_subcommand(1);

  BenchCodecOptions codec;
  auto* codec_command = bench->add_subcommand("codec", "encode and decode on one core");
  add_method_option(*codec_command, codec.specs);
  codec_command->add_option("--floats", codec.floats, "size of the gradient")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32U));
  codec_command->add_option("--steps", codec.steps, "timed steps")->check(CLI::Range(1, 10000));
  add_warmup_option(*codec_command, codec.warmup);
  codec_command
      ->add_option("--gradients", codec.gradients,
                   "gradients that `train --save-gradients` recorded, instead of synthetic ones")
      ->type_name("DIR")
      ->excludes("--floats")
      ->excludes("--steps")
      ->excludes("--warmup");
  codec_command->add_flag("--json", codec.json, "as JSON, for scripts");

  BenchReduceOptions reduce;
  std::string link = "unlimited";
  double timeout = 60;
  auto* reduce_command = bench->add_subcommand("reduce", "a whole all-reduce between ranks");
  add_method_option(*reduce_command, reduce.specs);
  reduce_command->add_option("--ranks", reduce.launch.ranks, "how many ranks (default: 4)")
      ->check(CLI::Range(1, 1024));
  reduce_command->add_option("--floats", reduce.floats, "size of the gradient")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32U));
  reduce_command->add_option("--steps", reduce.steps, "timed steps")->check(CLI::Range(1, 10000));
  add_warmup_option(*reduce_command, reduce.warmup);
  reduce_command->add_flag("--cycle", reduce.cycle,
                           "time a whole cycle of the method too, uncompressed steps included");
  reduce_command
      ->add_option("--transport", reduce.launch.transport,
                   "threads of this process, processes over gloo, or processes over mpi")
      ->check(CLI::IsMember({"threads", "gloo", "mpi"}));
  reduce_command->add_option("--link", link,
                             "simulate a link a rank: bandwidth[,latency], e.g. 100mbit,5ms");
  reduce_command->add_option("--interface", reduce.launch.interface,
                             "network interface for gloo, e.g. eth1");
  reduce_command->add_option("--timeout", timeout, "seconds a silent peer is waited for")
      ->check(CLI::Range(0.01, 1e6));
  reduce_command->add_flag("--json", reduce.json, "as JSON, for scripts");

  ReportOptions page;
  auto* report_command = app.add_subcommand("report", "compare training runs on one HTML page");
  report_command->add_option("runs", page.runs, "folders that `thinreduce train` wrote")
      ->type_name("RUN")
      ->required();
  report_command->add_option("-o,--output", page.output, "the page to write");
  report_command
      ->add_option("--codec", page.codec,
                   "what `thinreduce bench codec --gradients DIR --json` printed: adds a chart of "
                   "error against size")
      ->type_name("FILE");
  report_command->add_flag("--json", page.json, "print the summary as JSON, for scripts");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }

  if (*methods_command) return list_methods(methods_json);
  if (*report_command) return report(page);
  if (*codec_command) {
    codec.specs = checked_specs(codec.specs);
    return bench_codec(codec);
  }
  reduce.specs = checked_specs(reduce.specs);
  reduce.launch.link = Link::parse(link);
  reduce.launch.timeout = Seconds(timeout);
  reduce.launch.arguments.assign(argv, argv + argc);
  return bench_reduce(reduce);
}

}  // namespace
}  // namespace thinreduce::apps

int main(int argc, char** argv) {
  return thinreduce::apps::guarded([&] { return thinreduce::apps::run(argc, argv); });
}

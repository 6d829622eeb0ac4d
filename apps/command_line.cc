#include "apps/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "apps/program.h"
#include "apps/terminal.h"

namespace thinreduce::apps {
namespace {

constexpr double kUnbounded = 1e18;  // ranges beyond it are not worth showing in a help text
constexpr double kLarge = 1e6;       // ranges beyond it deserve a hint that 1e6 and 1M are numbers

// Option lines as "--name TYPE   Description. [range; default VALUE]".
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    // CLI11 separates groups of options by two empty lines.
    return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, name, mode), "\n\n\n",
                                         "\n\n");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    const std::string type = type_and_range(option).first;
    return type.empty() ? "" : " " + type;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::vector<std::string> limits;
    const std::string range = type_and_range(option).second;
    const std::string value = option->get_default_str();
    if (!range.empty()) limits.push_back(range);
    if (!value.empty() && value != "[]") limits.push_back("default " + value);
    std::string text = option->get_description();
    if (!limits.empty()) text += fmt::format(" [{}]", fmt::join(limits, "; "));
    text = wrapped(text, 0, kColumns - get_column_width());
    text.pop_back();  // CLI11 ends the last line itself
    return text;
  }

 private:
  // CLI11 joins the type and the descriptions of the checks by colons.
  static std::pair<std::string, std::string> type_and_range(const CLI::Option* option) {
    const std::string text = option->get_type_name();
    const auto colon = text.find(':');
    if (colon == std::string::npos) return {text, ""};
    return {text.substr(0, colon), text.substr(colon + 1)};
  }
};

std::string show_range(double min, double max) {
  if (max >= kUnbounded) return fmt::format("{} or more", min);
  return fmt::format("{} to {}", min, max);
}

std::optional<double> parse_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Returns the number that "25.6M" stands for: k, M and G are powers of 1000.
std::optional<double> parse_with_suffix(const std::string& text) {
  constexpr std::string_view kSuffixes = "kMG";
  const auto place = text.empty() ? std::string::npos : kSuffixes.find(text.back());
  if (place == std::string::npos) return parse_number(text);
  const auto value = parse_number(text.substr(0, text.size() - 1));
  // Rounded, because 25.6e6 may have no exact product.
  if (value)
    return std::round(*value * std::pow(1000.0, static_cast<double>(place + 1)) * 1e3) / 1e3;
  return std::nullopt;
}

// Replaces 1e6 and 1M by 1000000, which CLI11 can convert; digits stay as they are.
bool take_whole_number(std::string& text, double min, double max) {
  const auto value = parse_with_suffix(text);
  if (!value || *value != std::floor(*value) || *value < min || *value > max) return false;
  if (text.find_first_not_of("0123456789") == std::string::npos) return true;
  text = fmt::format("{:.0f}", *value);
  return true;
}

struct Command {
  const CLI::App* app;
  std::string path;  // "thinreduce bench codec"
};

// The innermost command that was given.
Command innermost(const CLI::App& app) {
  Command command{&app, app.get_name()};
  while (!command.app->get_subcommands().empty()) {
    command.app = command.app->get_subcommands().back();
    command.path += " " + command.app->get_name();
  }
  return command;
}

std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const auto [command, path] = innermost(app);
  const auto unknown = app.remaining(true);
  const bool is_option = !unknown.empty() && unknown[0].starts_with("-");
  std::vector<std::string> names;
  for (const CLI::App* each : command->get_subcommands({})) names.push_back(each->get_name());
  if (!names.empty() && unknown.empty()) {
    return fmt::format("`{}` needs a command: {}", path, fmt::join(names, ", "));
  }
  if (!names.empty() && !is_option) {
    return fmt::format("`{}` has no command '{}'; the commands are: {}", path, unknown[0],
                       fmt::join(names, ", "));
  }
  if (is_option) return fmt::format("`{}` has no option '{}'", path, unknown[0]);
  if (!unknown.empty()) {
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_positional() || option->get_items_expected_max() > 1) continue;
      return fmt::format("`{}` takes one {} (got '{}', too)", path, option->get_name(true),
                         unknown[0]);
    }
    const bool takes_method = command->get_option_no_throw("--method") != nullptr;
    return fmt::format("`{}` takes no arguments (got '{}'){}", path, unknown[0],
                       takes_method ? "; give a method as --method SPEC" : "");
  }
  const std::string text = error.what();  // "--name: what is wrong"
  const std::string name = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const bool twice = text.find("At Most") != std::string::npos;
    return name + (twice ? " was given twice; give it once" : " needs a value");
  }
  for (const CLI::Option* option : command->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return fmt::format("`{}` needs {}: {}", path, option->get_name(), option->get_description());
  }
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    return name + text.substr(std::min(text.size(), name.size() + 1));
  }
  return text;
}

}  // namespace

CLI::Validator whole_number(double min, double max) {
  return {[min, max](std::string& text) {
            if (take_whole_number(text, min, max)) return std::string();
            return fmt::format("must be a whole number from {} to {}{}; got '{}'", min,
                               fmt::format("{:.0f}", max),
                               max > kLarge ? ", such as 1000, 1e3 or 1k" : "", text);
          },
          show_range(min, max)};
}

CLI::Validator whole_number_or_auto(double min, double max) {
  return {[min, max](std::string& text) {
            if (take_whole_number(text, min, max)) return std::string();
            if (text == "auto") {
              text = "-1";
              return std::string();
            }
            return fmt::format("must be auto or a whole number, {}; got '{}'", show_range(min, max),
                               text);
          },
          show_range(min, max) + ", or auto"};
}

CLI::Validator number(double min, double max) {
  return {[min, max](std::string& text) {
            const auto value = parse_number(text);
            if (value && *value >= min && *value <= max) return std::string();
            return fmt::format("must be a number, {}; got '{}'", show_range(min, max), text);
          },
          show_range(min, max)};
}

CLI::Validator not_empty() {
  return {[](std::string& text) {
            return text.empty() ? std::string("must not be empty; is a shell variable unset?")
                                : std::string();
          },
          ""};
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  return {[words = std::move(words), list](std::string& text) {
            if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
            return fmt::format("must be one of: {}; got '{}'", list, text);
          },
          list};
}

void add_launch_options(CLI::App& command, LaunchOptions& launch) {
  const char* group = "Ranks and link";
  command.add_option("--ranks", launch.ranks, "Number of ranks.")
      ->type_name("N")
      ->transform(whole_number(1, 1024))
      ->default_str(std::to_string(kDefaultRanks))
      ->group(group);
  command
      .add_option(
          "--transport", launch.transport,
          "How ranks run and communicate: threads of this process, processes over Gloo, or "
          "processes over MPI. With gloo under torchrun, or mpi under mpirun, this process is "
          "one rank of that launch; with threads, the variables of torchrun are ignored.")
      ->type_name("NAME")
      ->transform(one_of({"threads", "gloo", "mpi"}))
      ->group(group);
  command
      .add_option_function<std::string>(
          "--link", [&](const std::string& text) { launch.link = Link::parse(text); },
          "Emulated link per rank, in real time: BANDWIDTH[,LATENCY] in kbit, mbit, gbit and us, "
          "ms, s, for example 100mbit,5ms.")
      ->type_name("LINK")
      ->default_str("unlimited")
      ->group(group);
  command
      .add_option(
          "--interface", launch.interface,
          "Network interface for gloo, such as eth1. By default $THINREDUCE_INTERFACE, or the "
          "one that leads to rank 0.")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option(
          "--secret-file", launch.secret_file,
          "File with a secret that all ranks must share, for gloo and mpi; its mode must be "
          "600. Without this option, the environment variable THINREDUCE_SECRET has the secret, or "
          "THINREDUCE_SECRET_FILE names its file; if neither is set, there is no secret.")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option_function<double>(
          "--timeout", [&](double seconds) { launch.timeout = Seconds(seconds); },
          "With gloo: a rank that does not answer for this many seconds is reported as lost; also "
          "the max seconds to connect. A rank that is busy computing still answers.")
      ->type_name("SECONDS")
      ->transform(number(0.01, 1e6))
      ->default_str(fmt::format("{}", launch.timeout.count()))
      ->group(group);
  command
      .add_option_function<double>(
          "--patience", [&](double seconds) { launch.patience = Seconds(seconds); },
          "Max time to wait for a rank that is alive but does not take part in a reduce, in "
          "seconds; 0: forever.")
      ->type_name("SECONDS")
      ->transform(number(0, 1e9))
      ->default_str(fmt::format("{}", launch.patience.count()))
      ->group(group);
}

void prepare(CLI::App& app) {
  auto formatter = std::make_shared<HelpFormatter>();
  formatter->label("SUBCOMMAND", "COMMAND");
  formatter->label("Positionals", "Arguments");
  formatter->column_width(28);
  app.formatter(formatter);
  app.option_defaults()->always_capture_default();
  app.group("Commands");
  app.set_help_flag("-h,--help", "Prints this help and exits.");
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "thinreduce: {}\nSee `{} --help`.\n", describe(app, error),
               innermost(app).path);
    return kUsage;
  }
}

}  // namespace thinreduce::apps

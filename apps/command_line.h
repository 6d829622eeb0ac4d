// Help texts and usage errors of both programs, on top of CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/launch.h"

namespace thinreduce::apps {

// Value checks for Option::transform(). Their descriptions are the ranges that --help shows.
// Whole numbers may be written as 1000000, 1e6 or 1M.
[[nodiscard]] CLI::Validator whole_number(double min, double max);
// Also takes the word "auto", which becomes -1.
[[nodiscard]] CLI::Validator whole_number_or_auto(double min, double max);
[[nodiscard]] CLI::Validator number(double min, double max);
[[nodiscard]] CLI::Validator not_empty();
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words);

// Adds --ranks, --transport, --link, --interface and --timeout.
void add_launch_options(CLI::App& command, LaunchOptions& launch);

// Sets the layout of the help texts. Subcommands inherit it, so call it before adding any.
void prepare(CLI::App& app);

// Parses the arguments. Returns an exit code when the program must end: 0 after --help, or kUsage
// after an error, which is on standard error and says what to do.
[[nodiscard]] std::optional<int> parse(CLI::App& app, int argc, char** argv);

}  // namespace thinreduce::apps

// Exit codes, error reporting and the path of the running program.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace thinreduce::apps {

// Exit codes beside 0 for success.
inline constexpr int kFailed = 1;  // the run failed
inline constexpr int kUsage = 2;   // wrong usage

// Returns the exit code of a program that an exception ended. bad_spec and bad_input count as wrong
// usage, unless a gradient was NaN or Inf.
[[nodiscard]] int exit_code(const std::exception& error);

// Runs a program and returns its exit code. Prints exceptions.
int guarded(const std::function<int()>& program);

// Returns the path of the running program.
[[nodiscard]] std::string own_path();

}  // namespace thinreduce::apps

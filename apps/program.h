// Exit codes, error reporting and the path of the running program.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "thinreduce/error.h"

namespace thinreduce::apps {

// Exit codes beside 0 for success.
inline constexpr int kFailed = 1;  // the run failed
inline constexpr int kUsage = 2;   // wrong usage

// The error that ended a run which was under way: its code may be bad_input, but the program was
// called as it should be.
class FailedRun : public Error {
 public:
  explicit FailedRun(const Error& error) : Error(error) {}
};

// Returns the exit code of a program that an exception ended. bad_spec and bad_input count as wrong
// usage, unless a gradient was NaN or Inf or a run was under way.
[[nodiscard]] int exit_code(const std::exception& error);

// Runs a program and returns its exit code. Prints exceptions.
int guarded(const std::function<int()>& program);

// Returns the path of the running program.
[[nodiscard]] std::string own_path();

}  // namespace thinreduce::apps

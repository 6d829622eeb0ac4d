// What the programs have in common: exit codes, how errors end them, and where they are.
#pragma once

#include <functional>
#include <string>

namespace thinreduce::apps {

// Exit codes; 0: done.
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// Runs a program and returns its exit code. What it throws is printed, and is wrong usage when the
// spec or an input is at fault.
int guarded(const std::function<int()>& program);

// The file of the running program.
[[nodiscard]] std::string own_path();

}  // namespace thinreduce::apps

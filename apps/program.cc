#include "apps/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace thinreduce::apps {

int exit_code(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || known->is_nonfinite()) return kFailed;
  if (dynamic_cast<const FailedRun*>(known) != nullptr) return kFailed;
  const bool usage = known->code() == ErrorCode::bad_spec || known->code() == ErrorCode::bad_input;
  return usage ? kUsage : kFailed;
}

int guarded(const std::function<int()>& program) {
  try {
    return program();
  } catch (const std::exception& error) {
    fmt::print(stderr, "thinreduce: {}\n", error.what());
    return exit_code(error);
  }
}

std::string own_path() {
  std::vector<char> path(4096);
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(0, length))};
}

}  // namespace thinreduce::apps

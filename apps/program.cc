#include "apps/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "thinreduce/error.h"

namespace thinreduce::apps {

int guarded(const std::function<int()>& program) {
  try {
    return program();
  } catch (const Error& error) {
    fmt::print(stderr, "thinreduce: {}\n", error.what());
    const bool usage = error.code() == ErrorCode::bad_spec || error.code() == ErrorCode::bad_input;
    return usage ? kUsage : kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "thinreduce: {}\n", error.what());
    return kFailed;
  }
}

std::string own_path() {
  std::vector<char> path(4096);
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(0, length))};
}

}  // namespace thinreduce::apps

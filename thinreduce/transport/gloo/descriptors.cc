#include "thinreduce/transport/gloo/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

unsigned long open_descriptors() {
  std::error_code failed;
  const std::filesystem::directory_iterator all("/proc/self/fd", failed);
  if (failed) return 0;
  return static_cast<unsigned long>(std::distance(begin(all), end(all)));
}

}  // namespace

void require_descriptors(int rank, int world, unsigned long more) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const unsigned long needed = open_descriptors() + more;
  if (needed > limit.rlim_max) {
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {}: a world of {} ranks needs {} file descriptors in this "
                            "process, and the hard limit is {}; raise it (ulimit -Hn, or "
                            "LimitNOFILE of a service)",
                            rank, world, needed, limit.rlim_max));
  }
  if (needed <= limit.rlim_cur) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed + limit.rlim_cur);
  // If the system refuses, the connection that finds no descriptor says so.
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace thinreduce

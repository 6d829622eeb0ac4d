#include "thinreduce/engine/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "thinreduce/engine/session.h"

namespace thinreduce {

std::map<int, double> find_outliers(std::span<const float> norms, double factor) {
  std::map<int, double> found;
  if (norms.size() < 2) return found;
  std::vector<float> sorted(norms.begin(), norms.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::ranges::nth_element(sorted, middle);
  if (*middle == 0) return found;
  for (std::size_t rank = 0; rank < norms.size(); ++rank) {
    const double times = static_cast<double>(norms[rank]) / static_cast<double>(*middle);
    if (times > factor) found[static_cast<int>(rank)] = times;
  }
  return found;
}

Error refused_outliers(const FrameId& id, const std::map<int, double>& outliers, double factor) {
  std::string who;
  for (const auto& [rank, times] : outliers) {
    who +=
        fmt::format("{}rank {} has {:.3g} times the median", who.empty() ? "" : ", ", rank, times);
  }
  return {ErrorCode::bad_input,
          fmt::format("bucket {}, step {}: the norms of the gradients differ too much: {}; the "
                      "guard allows {:g} times; this bucket was not reduced. Look at that rank's "
                      "data and loss, raise guard_factor, or use guard=clip",
                      id.bucket, id.step, who, factor)};
}

Guard guard_of(std::string_view name) {
  for (const Guard guard : {Guard::off, Guard::report, Guard::clip, Guard::refuse}) {
    if (name == to_string(guard)) return guard;
  }
  throw Error(ErrorCode::bad_input,
              fmt::format("guard must be off, report, clip or refuse, got '{}'", name));
}

std::string_view to_string(Guard guard) {
  switch (guard) {
    case Guard::off:
      return "off";
    case Guard::report:
      return "report";
    case Guard::clip:
      return "clip";
    case Guard::refuse:
      return "refuse";
  }
  return "unknown";
}

}  // namespace thinreduce

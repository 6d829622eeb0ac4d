#include "thinreduce/methods/gather_or_owner.h"

#include <fmt/format.h>

namespace thinreduce {

OptionInfo gather_or_owner_option(const std::string& owner) {
  return OptionInfo::choice(
      "collective", "auto", {"auto", "gather", "owner"},
      fmt::format("gather: every rank sends its payload to all others. owner: every rank sends {}. "
                  "auto: owner with more than 4 ranks.",
                  owner));
}

bool by_owners(const Options& options, int world) {
  // A gather sends N - 1 payloads, owners 2 or 3. The mean differs, so the choice must not follow
  // from a measurement: a resumed run would go on with other bits.
  constexpr int kMostToGather = 4;
  const std::string& collective = options.text("collective");
  return collective == "owner" || (collective == "auto" && world > kMostToGather);
}

}  // namespace thinreduce

// The option `collective` of methods whose payloads are gathered or reduced by owners.
#pragma once

#include <string>

#include "thinreduce/method/options.h"

namespace thinreduce {

// `owner` ends the help text of that choice: what the owners answer with.
[[nodiscard]] OptionInfo gather_or_owner_option(const std::string& owner);
// Returns whether owners reduce the buckets of a world of `world` ranks.
[[nodiscard]] bool by_owners(const Options& options, int world);

}  // namespace thinreduce

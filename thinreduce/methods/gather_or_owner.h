// The option `collective` of methods whose payloads are gathered or reduced by owners.
#pragma once

#include <cstddef>
#include <string>

#include "thinreduce/method/method.h"

namespace thinreduce {

// With at most this many ranks quantized codes are gathered, because owners would gain little and
// have more error. Sparse payloads, which owners decode once instead of N times, are gathered up to
// fewer.
inline constexpr int kMaxRanksToGather = 4;
inline constexpr int kMaxRanksToGatherSparse = 3;

// `owner` ends the help text of that choice; it describes the messages of ranks and owners.
[[nodiscard]] OptionInfo gather_or_owner_option(const std::string& owner,
                                                int max_ranks_to_gather = kMaxRanksToGather);

// The bytes that a method expects to send.
struct GatherCost {
  double payload_bytes = 0;   // of one rank, roughly
  double owner_payloads = 0;  // bytes of parts and answers, in payloads
  int max_ranks_to_gather = kMaxRanksToGather;
};
// Returns whether owners reduce a bucket. With collective=auto they do if there are more than
// max_ranks_to_gather ranks and it takes less time on a link of 1 Gbit/s and 0.1 ms. The mean
// differs, so the choice must not follow from a measured link: a resumed run would go on with other
// bits.
[[nodiscard]] bool by_owners(const Options& options, const MethodSetup& setup,
                             const GatherCost& cost);

}  // namespace thinreduce

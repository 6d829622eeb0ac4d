#include "thinreduce/methods/gather_or_owner.h"

#include <fmt/format.h>

#include "thinreduce/collective/owner.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {
namespace {

// The bytes that pass in one latency: 1 Gbit/s and 0.1 ms. On a slower or a longer way the gather
// of a small bucket is as good or better; a large bucket's bytes count on any.
constexpr double kLatencyBytes = 12500;
// The bytes of a part or an answer that do not depend on its length: its frame, its prefix, and
// about as many in its payload.
constexpr double kMessageBytes = kFrameHeaderBytes + 2.0 * kOwnerPrefixBytes;

}  // namespace

OptionInfo gather_or_owner_option(const std::string& owner, int max_ranks_to_gather) {
  return OptionInfo::choice(
      "collective", "auto", {"auto", "gather", "owner"},
      fmt::format("gather: every rank sends its payload to all others. owner: every rank sends {}. "
                  "auto: gather with up to {} ranks, and where it is faster because the bucket is "
                  "small; otherwise owner.",
                  owner, max_ranks_to_gather));
}

bool by_owners(const Options& options, const MethodSetup& setup, const GatherCost& cost) {
  const std::string& collective = options.text("collective");
  if (collective != "auto") return collective == "owner";
  if (setup.world <= cost.max_ranks_to_gather) return false;
  const double peers = setup.world - 1;
  const double payload = cost.payload_bytes * setup.stands_for;
  const double gathered = peers * (kFrameHeaderBytes + payload);
  const double owned = peers / setup.world * cost.owner_payloads * payload +
                       2 * peers * kMessageBytes + kLatencyBytes;
  return owned < gathered;
}

}  // namespace thinreduce

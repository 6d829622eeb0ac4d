// Which collective carries a sum. The choice follows from the number of ranks, the bytes and the
// estimate of the link, on which all ranks have agreed (Exchange::link), so it is the same on all
// ranks. Every collective adds in the same order, so the choice changes no bit of the sum.
#pragma once

#include <cstddef>
#include <optional>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/collective/owner_sum.h"
#include "thinreduce/collective/ring.h"

namespace thinreduce {

enum class SumBy {
  ring,    // ring.h: 2(N-1) latencies
  owner,   // owner_sum.h: 2 latencies
  direct,  // every rank sends everything to all: 1 latency, N/2 times the bytes
};

// Returns the seconds that a sum of `bytes` over `world` ranks takes on the link, computing
// excluded.
[[nodiscard]] double predict_seconds(SumBy by, int world, std::size_t bytes, const Link& link);

// A direct sum holds a copy per rank.
inline constexpr std::size_t kMaxDirectBytes = std::size_t{1024} * 1024;

// Returns the fastest collective by predict_seconds(); `direct` only if it is allowed.
[[nodiscard]] SumBy choose_sum(int world, std::size_t bytes, const Link& link, bool may_be_direct);

// The same for an exchange.
[[nodiscard]] SumBy choose_sum(const Exchange& exchange, std::size_t bytes, bool may_be_direct);

// For tests.
struct SumOptions {
  std::optional<SumBy> by;  // none: choose_sum() decides
  RingOptions ring{};
  OwnerSumOptions owner{};
};

// Sums the data of `codec` over all ranks, in a ring or by owners.
void all_reduce(Exchange& exchange, SumCodec& codec, const SumOptions& options = {});

}  // namespace thinreduce

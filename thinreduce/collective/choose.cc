#include "thinreduce/collective/choose.h"

#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

// In a ring, one neighbour sends to a rank at a time. To an owner all do, and their flows disturb
// one another on a real network; this is how much longer the bytes may take.
constexpr double kFanIn = 1.03;

}  // namespace

double predict_seconds(SumBy by, int world, std::size_t bytes, const Link& link) {
  const double peers = world - 1;
  const double latency = link.latency.count();
  const double once =
      link.bytes_per_second > 0 ? static_cast<double>(bytes) / link.bytes_per_second : 0;
  const double there_and_back = 2 * peers / world * once;
  switch (by) {
    case SumBy::ring:
      return 2 * peers * latency + there_and_back;
    case SumBy::owner:
      return 2 * latency + kFanIn * there_and_back;
    case SumBy::direct:
      return latency + kFanIn * peers * once;
  }
  throw_broken_invariant("choose: the collective must be one that sums", {static_cast<int>(by)});
}

SumBy choose_sum(int world, std::size_t bytes, const Link& link, bool may_be_direct) {
  SumBy best = SumBy::ring;
  const auto seconds = [&](SumBy by) { return predict_seconds(by, world, bytes, link); };
  if (seconds(SumBy::owner) < seconds(best)) best = SumBy::owner;
  if (may_be_direct && bytes <= kMaxDirectBytes && seconds(SumBy::direct) <= seconds(best)) {
    best = SumBy::direct;
  }
  return best;
}

SumBy choose_sum(const Exchange& exchange, std::size_t bytes, bool may_be_direct) {
  const auto whole = static_cast<std::size_t>(static_cast<double>(bytes) * exchange.stands_for);
  return choose_sum(exchange.size(), whole, exchange.link, may_be_direct);
}

void all_reduce(Exchange& exchange, SumCodec& codec, const SumOptions& options) {
  if (codec.units() == 0) return;
  const std::size_t bytes = codec.wire({0, codec.units()}, exchange.size()).size();
  const SumBy by = options.by.value_or(choose_sum(exchange, bytes, false));
  if (by == SumBy::ring) return ring_all_reduce(exchange, codec, options.ring);
  ensure(by == SumBy::owner, "only floats are summed directly", static_cast<int>(by));
  owner_all_reduce(exchange, codec, options.owner);
}

}  // namespace thinreduce

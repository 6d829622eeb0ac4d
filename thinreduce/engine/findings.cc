#include "thinreduce/engine/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {

std::optional<Error> compare_findings(Exchange& exchange, const BucketLayout& layout,
                                      const Nonfinite& found) {
  const std::uint64_t none = exchange.id().elements;
  const std::array<std::uint64_t, 2> seen{found.own, found.left};
  const bool clean = found.own >= none && found.left >= none;
  const auto world = static_cast<std::size_t>(exchange.size());
  std::vector<std::uint64_t> first(world, none);  // by the rank whose values they are
  gather(exchange, std::as_bytes(std::span(seen)).first(clean ? 0 : sizeof(seen)), sizeof(seen),
         [&](int rank, std::span<const std::byte> finding) {
           if (finding.empty()) return;
           if (finding.size() != sizeof(seen)) {
             throw Error(
                 ErrorCode::bad_frame,
                 fmt::format(
                     "rank {}'s NaN report has {} bytes and must have {}; run the same build on "
                     "all ranks",
                     rank, finding.size(), sizeof(seen)));
           }
           const auto own = static_cast<std::size_t>(rank);
           const std::size_t left = (own + world - 1) % world;
           first[own] = std::min(first[own], load_value<std::uint64_t>(finding, 0));
           first[left] = std::min(first[left], load_value<std::uint64_t>(finding, 8));
         });
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (first[rank] >= none) continue;
    return nonfinite_gradient(exchange.id(), static_cast<int>(rank),
                              layout.describe_element(first[rank]),
                              "the bucket's values are now undefined");
  }
  return std::nullopt;
}

}  // namespace thinreduce

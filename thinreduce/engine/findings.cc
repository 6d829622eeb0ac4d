#include "thinreduce/engine/findings.h"

#include <fmt/format.h>

#include "thinreduce/collective/gather.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {

std::optional<Error> compare_findings(Exchange& exchange, const BucketLayout& layout,
                                      std::uint64_t first) {
  std::optional<Error> error;
  const auto own = std::as_bytes(std::span(&first, 1));
  gather(exchange, own, own.size(), [&](int rank, std::span<const std::byte> finding) {
    if (finding.size() != own.size()) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("rank {}'s NaN report has {} bytes and must have {}; run the same "
                              "build on all ranks",
                              rank, finding.size(), own.size()));
    }
    const auto place = load_value<std::uint64_t>(finding, 0);
    if (error || place >= exchange.id().elements) return;
    error = nonfinite_values(exchange.id(), rank, layout, place,
                             "the bucket's values are now undefined");
  });
  return error;
}

}  // namespace thinreduce

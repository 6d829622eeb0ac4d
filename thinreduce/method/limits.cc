#include "thinreduce/method/limits.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "thinreduce/error.h"

namespace thinreduce {

void require_32bit_indices(std::string_view method, const BucketLayout& layout) {
  constexpr std::size_t kMaxElements = std::numeric_limits<std::uint32_t>::max();
  if (layout.elements <= kMaxElements) return;
  throw Error(ErrorCode::bad_input,
              fmt::format("{}: bucket {} has {} elements, more than the {} that this method "
                          "supports; split it into smaller buckets",
                          method, layout.id, layout.elements, kMaxElements));
}

}  // namespace thinreduce

#include "thinreduce/wire/bytes.h"

#include <fmt/format.h>

namespace thinreduce {

std::span<const std::byte> ByteReader::take(std::size_t count) {
  if (count > rest_.size()) {
    throw Error(ErrorCode::bad_frame, fmt::format("{} is cut: it needs {} more bytes and has {}",
                                                  what_, count, rest_.size()));
  }
  auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

void ByteReader::finish() const {
  if (!rest_.empty()) {
    throw Error(ErrorCode::bad_frame, fmt::format("{} has {} bytes too many", what_, rest_.size()));
  }
}

}  // namespace thinreduce

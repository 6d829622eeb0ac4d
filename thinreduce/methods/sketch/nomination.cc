#include "thinreduce/methods/sketch/nomination.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

// The reader starts one element before the bucket. A byte b above 0 advances by b and names the
// element there; 0 advances by 255 and names none.
constexpr std::size_t kFar = 255;

}  // namespace

std::size_t nomination_bytes(std::size_t elements, std::size_t max) {
  return max + elements / kFar;
}

void write_nomination(std::span<const std::uint32_t> named, std::span<std::byte> message) {
  std::fill(message.begin(), message.end(), std::byte{0});
  std::size_t at = 0;
  std::uint64_t next = 0;  // the element after the current one
  for (const std::uint64_t element : named) {
    const std::uint64_t far = (element - next) / kFar;
    at += far;
    next += far * kFar;
    ensure(at < message.size(), "a nomination must fit its message", at, message.size());
    message[at++] = static_cast<std::byte>(element - next + 1);
    next = element + 1;
  }
}

void read_nomination(std::span<const std::byte> message, int rank, std::size_t elements,
                     std::vector<std::uint32_t>& named) {
  named.clear();
  std::uint64_t next = 0;
  for (const std::byte byte : message) {
    const auto advance = std::to_integer<std::uint64_t>(byte);
    next += advance == 0 ? kFar : advance;
    if (advance == 0) continue;
    if (next > elements) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("rank {} named element {} of a bucket of {} elements", rank, next - 1,
                              elements));
    }
    named.push_back(static_cast<std::uint32_t>(next - 1));
  }
}

std::span<const std::uint32_t> elements_in(UnitRange run, std::span<const std::uint32_t> elements) {
  const auto first =
      static_cast<std::size_t>(std::ranges::lower_bound(elements, run.begin) - elements.begin());
  // They differ, so no more of them than elements of the run can be in it.
  const auto rest = elements.subspan(first, std::min(run.size(), elements.size() - first));
  return {rest.begin(), std::ranges::lower_bound(rest, run.end)};
}

void clear_named(std::span<const std::uint32_t> named, UnitRange run, std::span<float> values) {
  for (const std::size_t element : elements_in(run, named)) values[element - run.begin] = 0;
}

}  // namespace thinreduce

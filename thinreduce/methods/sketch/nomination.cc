#include "thinreduce/methods/sketch/nomination.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thinreduce/ensure.h"
#include "thinreduce/methods/top_selector.h"

namespace thinreduce {
namespace {

// The reader starts one element before the bucket. A byte b above 0 advances by b and names the
// element there; 0 advances by 255 and names none.
constexpr std::size_t kFar = 255;

// Elements that a thread names at a time.
constexpr std::size_t kNamesPerBlock = 65536;

// Returns the number of bytes that only advance, from element `next` to before `element`.
std::size_t far_bytes(std::uint64_t next, std::uint64_t element) {
  return static_cast<std::size_t>((element - next) / kFar);
}

}  // namespace

NominationTurns::NominationTurns(std::size_t elements, std::size_t max, int world,
                                 std::uint64_t step)
    : elements_(elements),
      shift_(static_cast<std::size_t>(step % static_cast<unsigned>(world))),
      turns_(static_cast<std::size_t>(world)) {
  const std::size_t blocks = (elements + kBlock - 1) / kBlock;
  const std::size_t missing = blocks * kBlock - elements;  // in the last block
  std::size_t dealt = 0;                                   // elements
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const std::size_t own = (blocks + turns_.size() - 1 - number) / turns_.size();  // blocks
    const bool has_last = own > 0 && (blocks - 1) % turns_.size() == number;
    const std::size_t places = own * kBlock - (has_last ? missing : 0);
    // Rounded so that all of them together are `max`.
    const std::size_t named =
        elements == 0 ? 0 : max * (dealt + places) / elements - max * dealt / elements;
    turns_[number] = {number, places, named};
    dealt += places;
  }
  ensure(dealt == elements, "every element must be dealt to one rank", dealt, elements);
}

void NominationTurns::join(std::span<const std::vector<std::uint32_t>> named,
                           std::vector<std::uint32_t>& elements) const {
  elements.clear();
  std::vector<std::size_t> next(turns_.size());  // per turn, its first name that is not joined
  for (std::size_t first = 0, block = 0; first < elements_; first += kBlock, ++block) {
    const std::size_t turn = block % turns_.size();
    const auto& places = named[(turn + turns_.size() - shift_) % turns_.size()];
    const std::size_t before = block / turns_.size() * kBlock;  // place of the first element
    for (std::size_t& at = next[turn]; at < places.size() && places[at] < before + kBlock; ++at) {
      elements.push_back(static_cast<std::uint32_t>(first + places[at] - before));
    }
  }
}

std::size_t nomination_bytes(std::size_t elements, std::size_t max) {
  return max + elements / kFar;
}

// Counts the bytes of each run of names first, so that the threads know where theirs begin.
void write_nomination(std::span<const std::uint32_t> named, std::span<std::byte> message,
                      Workers workers) {
  const auto next_of = [&](std::size_t i) -> std::uint64_t {
    return i == 0 ? 0 : std::uint64_t{named[i - 1]} + 1;
  };
  std::vector<std::size_t> far((named.size() + kNamesPerBlock - 1) / kNamesPerBlock);
  workers.for_runs(named.size(), kNamesPerBlock,
                   [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
                     std::size_t bytes = 0;
                     for (std::size_t i = first; i < first + count; ++i) {
                       bytes += far_bytes(next_of(i), named[i]);
                     }
                     far[first / kNamesPerBlock] = bytes;
                   });
  std::size_t all_far = 0;
  for (std::size_t& bytes : far) all_far += std::exchange(bytes, all_far);
  ensure(named.size() + all_far <= message.size(), "a nomination must fit its message",
         named.size() + all_far, message.size());
  std::ranges::fill(message.subspan(named.size() + all_far), std::byte{0});
  workers.for_runs(named.size(), kNamesPerBlock,
                   [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
                     std::size_t at = first + far[first / kNamesPerBlock];
                     for (std::size_t i = first; i < first + count; ++i) {
                       const std::uint64_t next = next_of(i);
                       std::size_t jumps = far_bytes(next, named[i]);
                       const std::uint64_t last = named[i] - next - jumps * kFar;
                       for (; jumps > 0; --jumps) message[at++] = std::byte{0};
                       message[at++] = static_cast<std::byte>(last + 1);
                     }
                   });
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
                  fmt::format("rank {} named element {} of the {} that it may name", rank, next - 1,
                              elements));
    }
    named.push_back(static_cast<std::uint32_t>(next - 1));
  }
}

void clear_named(std::span<const std::uint32_t> named, Range run, std::span<float> values) {
  for (const std::size_t element : elements_in(run, named)) values[element - run.begin] = 0;
}

}  // namespace thinreduce

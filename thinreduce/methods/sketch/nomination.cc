#include "thinreduce/methods/sketch/nomination.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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

// Names that are looked at together: nearly always none of them is far from the one before it.
constexpr std::size_t kBatch = 64;

// Returns how far an element is from the one named before it, or from the reader's start.
std::uint32_t advance_to(std::span<const std::uint32_t> named, std::size_t i) {
  return named[i] - (i == 0 ? std::numeric_limits<std::uint32_t>::max() : named[i - 1]);
}

// Returns whether a byte each suffices for `count` names.
bool all_near(std::span<const std::uint32_t> named, std::size_t first, std::size_t count) {
  static_assert((kFar & (kFar + 1)) == 0, "numbers up to kFar must be those without higher bits");
  std::uint32_t bits = advance_to(named, first);
  for (std::size_t i = first + 1; i < first + count; ++i) bits |= named[i] - named[i - 1];
  return bits <= kFar;
}

// Returns the number of bytes before the last that `advance` takes.
std::size_t far_bytes(std::uint32_t advance) {
  return (advance - 1) / kFar;
}

// Calls visit(first, count, near) for the batches of a run of names.
template <typename Visit>
void for_batches(std::span<const std::uint32_t> named, Range run, const Visit& visit) {
  for (std::size_t first = run.begin; first < run.end; first += kBatch) {
    const std::size_t count = std::min(kBatch, run.end - first);
    visit(first, count, all_near(named, first, count));
  }
}

// Returns how many bytes of a run of names are not their last ones.
std::size_t count_far(std::span<const std::uint32_t> named, Range run) {
  std::size_t bytes = 0;
  for_batches(named, run, [&](std::size_t first, std::size_t count, bool near) {
    if (near) return;
    for (std::size_t i = first; i < first + count; ++i) bytes += far_bytes(advance_to(named, i));
  });
  return bytes;
}

void write_names(std::span<const std::uint32_t> named, Range run, std::byte* to) {
  for_batches(named, run, [&](std::size_t first, std::size_t count, bool near) {
    if (near) {
      const std::uint32_t* const names = &named[first];
      std::byte* const bytes = to;
      bytes[0] = static_cast<std::byte>(advance_to(named, first));
      for (std::size_t i = 1; i < count; ++i) {
        bytes[i] = static_cast<std::byte>(names[i] - names[i - 1]);
      }
      to += count;
      return;
    }
    for (std::size_t i = first; i < first + count; ++i) {
      const std::uint32_t advance = advance_to(named, i);
      const std::size_t far = far_bytes(advance);
      to = std::fill_n(to, far, std::byte{0});
      *to++ = static_cast<std::byte>(advance - far * kFar);
    }
  });
}

// Throws for the first name past the last of `elements`.
[[noreturn]] void refuse(std::span<const std::byte> message, int rank, std::size_t elements) {
  std::uint64_t next = 0;
  for (const std::byte byte : message) {
    next += byte == std::byte{0} ? kFar : std::to_integer<std::uint64_t>(byte);
    if (byte != std::byte{0} && next > elements) break;
  }
  throw Error(
      ErrorCode::bad_frame,
      fmt::format("rank {} named element {} of the {} that it may name", rank, next - 1, elements));
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
  std::vector<std::size_t> far((named.size() + kNamesPerBlock - 1) / kNamesPerBlock);
  workers.for_runs(named.size(), kNamesPerBlock,
                   [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
                     far[first / kNamesPerBlock] = count_far(named, {first, first + count});
                   });
  std::size_t all_far = 0;
  for (std::size_t& bytes : far) all_far += std::exchange(bytes, all_far);
  ensure(named.size() + all_far <= message.size(), "a nomination must fit its message",
         named.size() + all_far, message.size());
  std::ranges::fill(message.subspan(named.size() + all_far), std::byte{0});
  workers.for_runs(named.size(), kNamesPerBlock,
                   [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
                     write_names(named, {first, first + count},
                                 message.data() + first + far[first / kNamesPerBlock]);
                   });
}

// Has no branches that depend on a byte. Elements ascend, so only the last one must be checked.
void read_nomination(std::span<const std::byte> message, int rank, std::size_t elements,
                     std::vector<std::uint32_t>& named) {
  named.resize(message.size());
  std::uint32_t* const to = named.data();
  std::size_t count = 0;
  std::uint64_t next = 0;
  std::uint64_t last = 0;
  for (const std::byte byte : message) {
    const auto advance = std::to_integer<std::uint64_t>(byte);
    next += advance == 0 ? kFar : advance;
    to[count] = static_cast<std::uint32_t>(next - 1);
    last = advance == 0 ? last : next;
    count += static_cast<std::size_t>(advance != 0);
  }
  if (last > elements) refuse(message, rank, elements);
  named.resize(count);
}

void clear_named(std::span<const std::uint32_t> named, Range run, std::span<float> values) {
  for (const std::size_t element : elements_in(run, named)) values[element - run.begin] = 0;
}

}  // namespace thinreduce

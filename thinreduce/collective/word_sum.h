// A sum of 16-bit words: the part that every payload of one word per element shares. A derived class
// encodes, adds and decodes; words() holds its wire form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/collective/sum_payload.h"
#include "thinreduce/ensure.h"

namespace thinreduce {

// Word is std::uint16_t or std::int16_t. One unit is one word.
template <typename Word>
class WordSum : public SumPayload {
 public:
  explicit WordSum(std::span<Word> words) : words_(words) {}

  [[nodiscard]] std::size_t units() const final { return words_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const final { return sizeof(Word); }
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int /*summed*/) final {
    return std::as_writable_bytes(words(range));
  }
  void add(UnitRange range, int summed, std::span<const std::byte> incoming, int peer) final {
    add_words(range, {.words = whole(range, incoming), .ranks = summed, .peer = peer});
  }
  void add_part(UnitRange range, int /*summed*/, std::span<const std::byte> part, int peer) final {
    add_words(range, {.words = whole(range, part), .ranks = 1, .peer = peer});
  }

 protected:
  // Words of a range that `peer` has sent, summed over `ranks` ranks.
  struct Incoming {
    std::span<const Word> words;
    int ranks;
    int peer;
  };
  // Adds the incoming words to words(range).
  virtual void add_words(UnitRange range, const Incoming& incoming) = 0;
  [[nodiscard]] std::span<Word> words(UnitRange range) const { return part(words_, range); }

 private:
  static std::span<const Word> whole(UnitRange range, std::span<const std::byte> bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    ensure(address % alignof(Word) == 0 && bytes.size() == range.size() * sizeof(Word),
           "incoming words must be whole and at an even address", address % alignof(Word),
           bytes.size(), range.size());
    return {reinterpret_cast<const Word*>(bytes.data()), range.size()};
  }

  std::span<Word> words_;
};

}  // namespace thinreduce

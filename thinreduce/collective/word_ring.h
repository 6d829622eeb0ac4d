// A ring of 16-bit words: the part that every payload of one word per element shares. A derived
// class encodes, adds and decodes; words_ holds its wire form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/collective/ring.h"
#include "thinreduce/ensure.h"

namespace thinreduce {

// Word is std::uint16_t or std::int16_t. One unit is one word.
template <typename Word>
class WordRing : public RingPayload {
 public:
  explicit WordRing(std::span<Word> words) : words_(words) {}

  [[nodiscard]] std::size_t units() const final { return words_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const final { return sizeof(Word); }
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int /*summed*/) final {
    return std::as_writable_bytes(words(range));
  }
  void add(UnitRange range, int summed, std::span<const std::byte> incoming) final {
    const auto address = reinterpret_cast<std::uintptr_t>(incoming.data());
    ensure(address % alignof(Word) == 0 && incoming.size() == range.size() * sizeof(Word),
           "incoming words must be whole and at an even address", address % alignof(Word),
           incoming.size(), range.size());
    add_words(range, summed, {reinterpret_cast<const Word*>(incoming.data()), range.size()});
  }

 protected:
  // As RingPayload::add().
  virtual void add_words(UnitRange range, int summed, std::span<const Word> incoming) = 0;
  [[nodiscard]] std::span<Word> words(UnitRange range) const { return part(words_, range); }

 private:
  std::span<Word> words_;
};

}  // namespace thinreduce

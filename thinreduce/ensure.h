// Checks of invariants.
#pragma once

#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "thinreduce/error.h"

namespace thinreduce {

// A place in the source. std::source_location is not in every compiler that reads this header.
struct Place {
  const char* file = "";
  int line = 0;

  static constexpr Place current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// A condition that must hold, and the place of its check.
struct Claim {
  constexpr Claim(const char* claim, Place said_at = Place::current())  // NOLINT: implicit
      : text(claim), place(said_at) {}

  const char* text;
  Place place;
};

// A value in the text of a broken invariant: a number or a word.
struct ShownValue {
  template <typename Number>
  requires std::is_arithmetic_v<Number>
  constexpr ShownValue(Number value)  // NOLINT: implicit
      : number(static_cast<double>(value)) {}
  constexpr ShownValue(std::string_view value) : is_word(true), word(value) {}  // NOLINT: implicit

  double number = 0;
  bool is_word = false;
  std::string_view word;
};

// Throws BrokenInvariant with the claim, its place and the values: where no way may lead.
[[noreturn]] void throw_broken_invariant(const Claim& claim,
                                         std::initializer_list<ShownValue> values);

// Throws BrokenInvariant with the claim, its place and the values unless `holds`:
//   ensure(in.size() == out.size(), "add: spans must have the same length", in.size(), out.size());
// Values are numbers and string_views.
template <typename... Values>
inline void ensure(bool holds, Claim claim, Values... values) {
  if (!holds) [[unlikely]] {
    // A copy of the claim, so that nothing is stored before it is needed.
    throw_broken_invariant({claim.text, claim.place}, {ShownValue(values)...});
  }
}

}  // namespace thinreduce

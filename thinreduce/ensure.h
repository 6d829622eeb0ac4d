// Checks of invariants.
#pragma once

#include <initializer_list>

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

[[noreturn]] void throw_broken_invariant(const char* claim, const char* file, int line,
                                         std::initializer_list<double> values);

// Throws BrokenInvariant with the claim, its place and the values unless `holds`:
//   ensure(in.size() == out.size(), "add: spans must have the same length", in.size(), out.size());
template <typename... Numbers>
inline void ensure(bool holds, Claim claim, Numbers... values) {
  if (!holds) [[unlikely]] {
    // In parts, so that nothing is stored before it is needed.
    throw_broken_invariant(claim.text, claim.place.file, claim.place.line,
                           {static_cast<double>(values)...});
  }
}

}  // namespace thinreduce

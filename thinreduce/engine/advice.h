// Turns what is thrown below the engine into errors that also say what to do, because code there
// can't know the remedy.
#pragma once

#include <string_view>

#include "thinreduce/error.h"

namespace thinreduce {

// Returns an error of an exchange with a text that also says what to do: for bytes that can't be
// right (bad_frame), for sums that overflow in a method (is_overflow), and for messages that do
// not belong together (mismatch). Others are returned as they are.
[[nodiscard]] Error with_advice(const Error& error);

// Returns the exception that is being handled as an Error, so that every caller sees the same one:
// `unavailable` where memory ran out, `internal` for everything that is no Error, with_advice() of
// the rest. `place` begins the text: "bucket 3".
[[nodiscard]] Error current_error(std::string_view place);

}  // namespace thinreduce

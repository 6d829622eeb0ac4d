// Adds advice to errors that are found below the engine, in code that can't know the remedy.
#pragma once

#include "thinreduce/error.h"

namespace thinreduce {

// Returns an error of an exchange with a text that also says what to do: for bytes that can't be
// right (bad_frame), for sums that overflow in a method (the same code), and for messages that do
// not belong together (mismatch). Others are returned as they are.
[[nodiscard]] Error with_advice(const Error& error);

}  // namespace thinreduce

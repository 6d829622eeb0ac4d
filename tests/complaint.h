// The text of an error that may or may not be thrown.
#pragma once

#include <string>

#include "thinreduce/error.h"

namespace thinreduce {

// Returns the message of the Error that `action` throws, or "(nothing)".
template <typename Action>
std::string complaint(const Action& action) {
  try {
    (void)action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing)";
}

}  // namespace thinreduce

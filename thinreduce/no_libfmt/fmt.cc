// The functions of fmt's library that its headers call, for builds that must not link the library.
// Compiling all files with FMT_HEADER_ONLY would do as well, in twice the time.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace thinreduce {
namespace {

// The compiler keeps this function and, without inlining, all that it calls.
[[gnu::used]] std::string keep(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace
}  // namespace thinreduce

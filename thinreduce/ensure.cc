#include "thinreduce/ensure.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace thinreduce {
namespace {

// The file's path in the source tree, which ends where this file's own path does.
std::string_view in_source_tree(std::string_view file) {
  constexpr std::string_view kHere = __FILE__;
  constexpr std::string_view kInTree = "thinreduce/ensure.cc";
  const std::string_view tree = kHere.substr(0, kHere.size() - kInTree.size());
  return file.starts_with(tree) ? file.substr(tree.size()) : file;
}

}  // namespace

void throw_broken_invariant(const char* claim, const char* file, int line,
                            std::initializer_list<double> values) {
  std::string shown;
  for (const double value : values) {
    shown += fmt::format("{}{}", shown.empty() ? " (values " : ", ", value);
  }
  if (!shown.empty()) shown += ")";
  throw BrokenInvariant(fmt::format("{}:{}: broken invariant: {}{}; this is a bug in thinreduce",
                                    in_source_tree(file), line, claim, shown));
}

}  // namespace thinreduce

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

void throw_broken_invariant(const Claim& claim, std::initializer_list<ShownValue> values) {
  std::string shown;
  for (const ShownValue& value : values) {
    shown += shown.empty() ? " (values " : ", ";
    shown += value.is_word ? fmt::format("'{}'", value.word) : fmt::format("{}", value.number);
  }
  if (!shown.empty()) shown += ")";
  throw BrokenInvariant(fmt::format("{}:{}: broken invariant: {}{}; this is a bug in thinreduce",
                                    in_source_tree(claim.place.file), claim.place.line, claim.text,
                                    shown));
}

}  // namespace thinreduce

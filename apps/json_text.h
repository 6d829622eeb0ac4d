// Parses untrusted JSON. Text whose brackets are nested deeply is refused, because a copy of the
// value and its text are made by recursion, which would overflow the stack.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace thinreduce::apps {

// Our own files have brackets up to a quarter of this depth.
inline constexpr std::size_t kMaxJsonDepth = 32;

class NestedTooDeep final : public nlohmann::json::exception {
 public:
  NestedTooDeep() : exception(0, "brackets are nested more than 32 deep") {}
};

// Returns whether brackets outside of strings are nested more than kMaxJsonDepth deep.
[[nodiscard]] inline bool nests_too_deep(std::string_view text) {
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted) {
      if (text[i] == '\\') ++i;
      continue;
    }
    if (text[i] == '[' || text[i] == '{') ++depth;
    if ((text[i] == ']' || text[i] == '}') && depth > 0) --depth;
    if (depth > kMaxJsonDepth) return true;
  }
  return false;
}

// Throws nlohmann::json::exception.
[[nodiscard]] inline nlohmann::json parse_json(std::string_view text) {
  if (nests_too_deep(text)) throw NestedTooDeep();
  return nlohmann::json::parse(text.begin(), text.end());
}

// Returns a discarded value for text that is refused.
[[nodiscard]] inline nlohmann::json parse_json_or_discard(std::string_view text) {
  if (nests_too_deep(text)) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
}

}  // namespace thinreduce::apps

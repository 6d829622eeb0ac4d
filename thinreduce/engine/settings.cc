#include "thinreduce/engine/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/version.h"

namespace thinreduce {
namespace {

// Returns the first words in which the settings of rank 0 and of another rank differ.
std::string first_difference(std::string_view own, std::string_view other, std::size_t rank) {
  const auto next_word = [](std::string_view& text) {
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    return word;
  };
  for (;;) {
    const auto first = next_word(own);
    const auto second = next_word(other);
    if (first != second || (own.empty() && other.empty())) {
      const auto shown = [](std::string_view word) { return word.empty() ? "nothing" : word; };
      return fmt::format("{} on rank 0, {} on rank {}", shown(first), shown(second), rank);
    }
  }
}

// Returns the settings that ranks must share, but that a resumed run may change.
std::string guard_text(const SessionOptions& options) {
  if (options.guard == Guard::off) return "";
  if (!(options.guard_factor > 1) || std::isinf(options.guard_factor)) {
    throw Error(ErrorCode::bad_input, fmt::format("guard_factor must be finite and above 1, got {}",
                                                  options.guard_factor));
  }
  return fmt::format(" guard={} guard_factor={}", to_string(options.guard), options.guard_factor);
}

}  // namespace

std::string settings_text(const Spec& spec, const SessionOptions& options) {
  return fmt::format("{} min_elements={} warmup_steps={} check_replicas_every={} seed={}",
                     spec.full_text(), options.min_elements, options.warmup_steps,
                     options.check_replicas_every, options.seed);
}

Spec checked_spec(const std::string& text, const SessionOptions& options) {
  Spec spec = Spec::parse(text);
  if (const auto update = spec.update(); update && !options.momentum_inside_ok) {
    throw Error(ErrorCode::bad_spec,
                fmt::format("'{}' applies momentum itself, so the optimizer must apply none: set "
                            "the optimizer's momentum to 0 and momentum_inside_ok to true, or use "
                            "{}:{}",
                            text, spec.info->name, update->without));
  }
  return spec;
}

void refuse_signs(const Spec& spec) {
  const auto update = spec.update();
  if (!update || !update->signs) return;
  throw Error(ErrorCode::bad_spec,
              fmt::format("'{}' returns the signs of the mean, which local steps can't use as a "
                          "change of the parameters; use {}:{}",
                          spec.short_text(), spec.info->name, update->without));
}

std::string start_text(const std::string& settings, const SessionOptions& options) {
  std::string text = fmt::format("{} version={}{}", settings, version(), guard_text(options));
  if (!options.caller_settings.empty()) text += " " + options.caller_settings;
  return text;
}

int checked_threads(const SessionOptions& options) {
  if (options.threads < 1 || options.threads > SessionOptions::kMaxThreads) {
    throw Error(ErrorCode::bad_input, fmt::format("threads must be 1 to {}, got {}",
                                                  SessionOptions::kMaxThreads, options.threads));
  }
  return options.threads;
}

std::vector<std::string> gather_texts(Exchange& exchange, const std::string& own) {
  constexpr std::size_t kLongestText = std::size_t{64} * 1024;
  std::vector<std::string> texts;
  gather(exchange, std::as_bytes(std::span(own)), kLongestText,
         [&](int /*rank*/, std::span<const std::byte> text) {
           texts.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
         });
  return texts;
}

void require_equal(const std::vector<std::string>& texts) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw Error(
        ErrorCode::mismatch,
        fmt::format("rank 0 runs '{}', rank {} runs '{}': {}; start all ranks with the "
                    "same version, spec and options",
                    texts[0], rank, texts[rank], first_difference(texts[0], texts[rank], rank)));
  }
}

}  // namespace thinreduce

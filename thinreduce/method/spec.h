// A spec: text that chooses a method and its options, `topk:density=0.01,feedback=on`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "thinreduce/method/method.h"

namespace thinreduce {

// A parsed spec. Its methods exist and compose, every value is in range, and no option contradicts
// another.
struct Spec {
  const MethodInfo* info = nullptr;
  Options options;
  // The method b of `a+b`, which quantizes the values that a sends.
  std::optional<InnerMethod> inner;

  // Throws Error{bad_spec}; the message lists the valid names.
  static Spec parse(std::string_view text);
  // Returns the name without options: `a` or `a+b`.
  [[nodiscard]] std::string name() const;
  // Returns the spec with the options that differ from their defaults.
  [[nodiscard]] std::string short_text() const;
  // Returns the spec with every option, in a fixed order: equal specs have equal texts.
  [[nodiscard]] std::string full_text() const;
  // Returns whether a session chooses the method of each bucket itself: the spec `auto`. It can't
  // make a method.
  [[nodiscard]] bool is_auto() const;
  // Returns the update, if reduce() returns one in place of a mean.
  [[nodiscard]] std::optional<Update> update() const { return info->update(options); }
  [[nodiscard]] std::unique_ptr<Method> make(const MethodSetup& setup) const;
};

}  // namespace thinreduce

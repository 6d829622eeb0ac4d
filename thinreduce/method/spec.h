// A spec chooses a method and its options as text: `topk:density=0.01,feedback=on`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "thinreduce/method/method.h"

namespace thinreduce {

// A spec that was checked: the methods exist, go together, every value is in range, and no option
// contradicts another.
struct Spec {
  const MethodInfo* info = nullptr;
  Options options;
  // `a:options+b:options`: what a sends is quantized by b.
  std::optional<InnerMethod> inner;

  // Throws Error{bad_spec} that says what exists.
  static Spec parse(std::string_view text);
  // Without options: `a` or `a+b`.
  [[nodiscard]] std::string name() const;
  // With the options that are not the default's.
  [[nodiscard]] std::string short_text() const;
  // With every option spelled out, in a fixed order: equal specs have equal text.
  [[nodiscard]] std::string full_text() const;
  // Returns whether the method hands back an update with momentum inside instead of a mean: the
  // optimizer must then have none of its own.
  [[nodiscard]] bool momentum_inside() const { return info->momentum_inside(options); }
  [[nodiscard]] std::unique_ptr<Method> make(const MethodSetup& setup) const;
};

}  // namespace thinreduce

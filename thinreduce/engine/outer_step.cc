#include "thinreduce/engine/outer_step.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"

namespace thinreduce {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::bad_input,
              fmt::format("outer step '{}': {}; write 'nesterov,lr=0.7,momentum=0.9' or 'sgd,lr=1'",
                          text, why));
}

float number_of(std::string_view text, std::string_view name, std::string_view digits) {
  float value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    refuse(text, fmt::format("{} must be a number, got '{}'", name, digits));
  }
  return value;
}

// Returns the text up to the next comma and removes both from `rest`.
std::string_view next_word(std::string_view& rest) {
  const auto word = rest.substr(0, rest.find(','));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

}  // namespace

OuterStep OuterStep::parse(std::string_view text) {
  std::string_view rest = text;
  const auto name = next_word(rest);
  OuterStep step;
  if (name == "sgd") {
    step = {.kind = Kind::sgd, .lr = 1, .momentum = 0};
  } else if (name != "nesterov") {
    refuse(text, fmt::format("there is no outer optimizer '{}'", name));
  }
  bool has_lr = false;
  bool has_momentum = false;
  while (!rest.empty()) {
    const auto word = next_word(rest);
    const auto equals = word.find('=');
    const auto key = word.substr(0, equals);
    const bool is_lr = key == "lr";
    if (equals == std::string_view::npos || (!is_lr && key != "momentum")) {
      refuse(text, fmt::format("'{}' is no setting; they are lr=X and momentum=X", word));
    }
    bool& given = is_lr ? has_lr : has_momentum;
    if (given) refuse(text, fmt::format("{} is given twice", key));
    given = true;
    (is_lr ? step.lr : step.momentum) = number_of(text, key, word.substr(equals + 1));
  }
  if (!(step.lr > 0)) refuse(text, fmt::format("lr must be above 0, got {}", step.lr));
  if (!(step.momentum >= 0 && step.momentum < 1)) {
    refuse(text, fmt::format("momentum must be at least 0 and below 1, got {}", step.momentum));
  }
  return step;
}

std::string OuterStep::to_string() const {
  return fmt::format("{},lr={},momentum={}", kind == Kind::sgd ? "sgd" : "nesterov", lr, momentum);
}

void OuterStep::apply(std::span<float> anchor, std::span<float> velocity,
                      std::span<const float> mean) const {
  ensure(mean.size() == anchor.size(), "outer step: one mean per parameter", mean.size(),
         anchor.size());
  if (momentum == 0) {
    for (std::size_t i = 0; i < anchor.size(); ++i) anchor[i] -= lr * mean[i];
    return;
  }
  ensure(velocity.size() == anchor.size(), "outer step: one velocity per parameter",
         velocity.size(), anchor.size());
  for (std::size_t i = 0; i < anchor.size(); ++i) {
    velocity[i] = momentum * velocity[i] + mean[i];
    const float update = kind == Kind::sgd ? velocity[i] : mean[i] + momentum * velocity[i];
    anchor[i] -= lr * update;
  }
}

}  // namespace thinreduce

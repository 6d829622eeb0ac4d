#include "thinreduce/kernels/target.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <deque>

#include "thinreduce/error.h"
#include "thinreduce/kernels/dispatch.h"

namespace thinreduce::kernels {
namespace {

struct Target {
  std::string name;
  bool reference = false;
  hwy::ChosenTarget highway;  // unused by the reference
};

// Created once and never changed, so that threads can share pointers into it.
const std::deque<Target>& targets() {
  static const auto list = [] {
    std::deque<Target> made;
    for (auto bit : hwy::SupportedAndGeneratedTargets()) {
      if (bit == HWY_SCALAR || bit == HWY_EMU128) continue;
      auto& target = made.emplace_back();
      target.name = hwy::TargetName(bit);
      target.highway.Update(bit);
    }
    auto& reference = made.emplace_back();
    reference.name = "reference";
    reference.reference = true;
    return made;
  }();
  return list;
}

const Target& find(std::string_view name, std::string_view who_asks) {
  for (const auto& target : targets()) {
    if (target.name == name) return target;
  }
  std::string available;
  for (const auto& target : targets()) {
    available += (available.empty() ? "" : ", ") + target.name;
  }
  throw Error(ErrorCode::unavailable, fmt::format("{} is \"{}\"; on this CPU it must be one of: {}",
                                                  who_asks, name, available));
}

// Null until the first kernel or query.
std::atomic<const Target*> chosen{nullptr};

const Target& decide() {
  const char* wanted = std::getenv("THINREDUCE_SIMD");
  const Target& first =
      wanted != nullptr && *wanted != '\0' ? find(wanted, "THINREDUCE_SIMD") : targets().front();
  const Target* expected = nullptr;  // a concurrent use_target() wins
  return chosen.compare_exchange_strong(expected, &first) ? first : *expected;
}

const Target& current() {
  const Target* target = chosen.load(std::memory_order_acquire);
  return target != nullptr ? *target : decide();
}

}  // namespace

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const auto& target : targets()) names.push_back(target.name);
  return names;
}

std::string active_target() {
  return current().name;
}

void use_target(std::string_view name) {
  chosen = &find(name, "use_target()");
}

const hwy::ChosenTarget* dispatch::chosen_target() {
  const Target& target = current();
  return target.reference ? nullptr : &target.highway;
}

}  // namespace thinreduce::kernels

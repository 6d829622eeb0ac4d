// A plan as one HTML page: the choice, the candidates, and predicted times against the bandwidth of
// the link.
#pragma once

#include <string>

#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

// Returns the page, which needs no other file. `title` says what was planned.
[[nodiscard]] std::string plan_page(const Plan& plan, const std::string& title);

}  // namespace thinreduce::apps

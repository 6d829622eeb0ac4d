// A plan as JSON, for `thinreduce plan --json` and the summary of a training.
#pragma once

#include <nlohmann/json.hpp>

#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

[[nodiscard]] nlohmann::ordered_json to_json(const Plan& plan);

}  // namespace thinreduce::apps

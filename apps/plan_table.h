// The candidates of a plan's bucket as cells of a table, for the terminal and for pages.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

[[nodiscard]] std::vector<std::string> plan_table_heading();
// `candidate` must be one of the bucket's and must have been tried.
[[nodiscard]] std::vector<std::string> plan_table_row(const PlanBucket& bucket,
                                                      const PlanCandidate& candidate);

}  // namespace thinreduce::apps

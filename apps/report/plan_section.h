// The plan of a run with the method `auto`, as a section of the report.
#pragma once

#include <string>
#include <vector>

#include "apps/report/json_file.h"
#include "apps/report/run.h"
#include "apps/report/summary.h"
#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

// Reads a plan as summary.json holds it. Throws Error that names the file and the problem.
[[nodiscard]] Plan read_plan(const JsonObject& json);

// Returns the choice of a bucket with its reason, and the table of its candidates.
[[nodiscard]] std::string plan_bucket_html(const PlanBucket& bucket);

// Returns the plans of all runs that have one; "" if there is none. `rows` must be summarise(runs).
[[nodiscard]] std::string plan_section(const std::vector<RunRecord>& runs,
                                       const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

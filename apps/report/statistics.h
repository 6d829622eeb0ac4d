// Statistics that methods report per step, averaged over a run: a table of the page.
#pragma once

#include <string>
#include <vector>

#include "apps/report/run.h"
#include "apps/report/summary.h"

namespace thinreduce::apps {

struct Statistic {
  std::string name;
  double mean = kMissing;  // over the steps that report it
  double late = kMissing;  // over the last tenth of those steps
};

// Returns the statistics of a run, sorted by name.
[[nodiscard]] std::vector<Statistic> statistics_of(const RunRecord& run);

// Returns HTML with a heading, or "" when no run has statistics. `rows` must be summarise(runs).
[[nodiscard]] std::string statistics_section(const std::vector<RunRecord>& runs,
                                             const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

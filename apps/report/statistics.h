// What methods tell about their steps, averaged over a run: a table of the page.
#pragma once

#include <string>
#include <vector>

#include "apps/report/run.h"
#include "apps/report/summary.h"

namespace thinreduce::apps {

struct Statistic {
  std::string name;
  double mean = kMissing;  // over the steps that tell it
  double late = kMissing;  // over the last tenth of those
};

// In the order of their names.
[[nodiscard]] std::vector<Statistic> statistics_of(const RunRecord& run);

// As HTML with a heading; "" when no run has statistics. `rows` as summarise(runs) made them.
[[nodiscard]] std::string statistics_section(const std::vector<RunRecord>& runs,
                                             const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

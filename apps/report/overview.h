// The text of the page: its title, a description of the runs and the table of results, as HTML.
#pragma once

#include <string>
#include <vector>

#include "apps/report/run.h"
#include "apps/report/summary.h"

namespace thinreduce::apps {

// The title is not escaped.
[[nodiscard]] std::string title(const std::vector<RunRecord>& runs);
[[nodiscard]] std::string overview(const std::vector<RunRecord>& runs);
[[nodiscard]] std::string summary_table(const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

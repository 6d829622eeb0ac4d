// The report as one self-contained HTML page.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/report/rate_distortion.h"
#include "apps/report/run.h"
#include "apps/report/summary.h"

namespace thinreduce::apps {

// More points would be finer than a pixel.
inline constexpr std::size_t kPointsPerCurve = 1000;

// Escapes text for use between tags and in quoted attributes.
[[nodiscard]] std::string escape_html(std::string_view text);
// Returns JSON that can't end the script element around it. Replaces invalid UTF-8.
[[nodiscard]] std::string script_json(const nlohmann::ordered_json& json);
// Replaces every {{NAME}} by its value in one pass, so that values are not searched for names.
[[nodiscard]] std::string fill(std::string_view text,
                               const std::map<std::string, std::string, std::less<>>& values);

// Returns the data of the charts.
[[nodiscard]] nlohmann::ordered_json chart_data(const std::vector<RunRecord>& runs,
                                                const std::vector<SummaryRow>& rows,
                                                const std::vector<CodecResult>& codec);

// Returns the page. `rows` must be summarise(runs). Without `codec` the page has no chart of it.
[[nodiscard]] std::string make_page(const std::vector<RunRecord>& runs,
                                    const std::vector<SummaryRow>& rows,
                                    const std::vector<CodecResult>& codec);

}  // namespace thinreduce::apps

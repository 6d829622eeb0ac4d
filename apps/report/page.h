// The report as one HTML page that needs nothing else.
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

// More points than this are finer than a pixel.
inline constexpr std::size_t kPointsOfACurve = 1000;

// For text between tags and in quoted attributes.
[[nodiscard]] std::string escape_html(std::string_view text);
// JSON that can't end the script element around it. Bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string script_json(const nlohmann::ordered_json& json);
// Replaces every {{NAME}} by its value in one pass, so that values are never searched themselves.
[[nodiscard]] std::string fill(std::string_view text,
                               const std::map<std::string, std::string, std::less<>>& values);

// What the charts draw.
[[nodiscard]] nlohmann::ordered_json chart_data(const std::vector<RunRecord>& runs,
                                                const std::vector<SummaryRow>& rows,
                                                const std::vector<CodecResult>& codec);

// `rows` as summarise(runs) made them; `codec` may be empty: then there is no such chart.
[[nodiscard]] std::string make_page(const std::vector<RunRecord>& runs,
                                    const std::vector<SummaryRow>& rows,
                                    const std::vector<CodecResult>& codec);

}  // namespace thinreduce::apps

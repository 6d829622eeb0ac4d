#include "apps/report/statistics.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numeric>

#include "apps/report/page.h"

namespace thinreduce::apps {
namespace {

double mean_from(const std::vector<double>& values, std::size_t first) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), 0.0) /
         static_cast<double>(values.size() - first);
}

}  // namespace

std::vector<Statistic> statistics_of(const RunRecord& run) {
  std::map<std::string, std::vector<double>> reported;
  for (const RunStep& step : run.steps) {
    for (const auto& [name, value] : step.statistics) {
      if (std::isfinite(value)) reported[name].push_back(value);
    }
  }
  std::vector<Statistic> all;
  for (const auto& [name, values] : reported) {
    all.push_back({.name = name,
                   .mean = mean_from(values, 0),
                   .late = mean_from(values, values.size() - (values.size() + 9) / 10)});
  }
  return all;
}

std::string statistics_section(const std::vector<RunRecord>& runs,
                               const std::vector<SummaryRow>& rows) {
  std::string lines;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Statistic& statistic : statistics_of(runs[i])) {
      lines += fmt::format(
          "<tr><th scope=\"row\">{}</th><td>{}</td><td>{:.4g}</td><td>{:.4g}</td><td></td></tr>\n",
          escape_html(rows[i].label), escape_html(statistic.name), statistic.mean, statistic.late);
    }
  }
  if (lines.empty()) return "";
  return "<section>\n<details><summary>Statistics of the methods</summary>\n"
         "<div class=\"scroll\">\n<table id=\"statistics\">\n<thead><tr><th "
         "scope=\"col\">method</th>"
         "<th scope=\"col\">statistic</th><th scope=\"col\">mean</th><th scope=\"col\">last tenth"
         "</th><th></th></tr></thead>\n<tbody>\n" +
         lines +
         "</tbody>\n</table>\n</div>\n<p class=\"legend\">Means over all steps and over the last "
         "tenth of them, on rank 0. The page of each method in the documentation explains its "
         "statistics. <b>sent</b> is the fraction of the elements that were sent, so 1/sent is a "
         "compression ratio in elements instead of bytes.</p>\n</details>\n</section>\n";
}

}  // namespace thinreduce::apps

#include "apps/report/overview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "apps/report/page.h"

namespace thinreduce::apps {
namespace {

// Returns the distinct values of all runs: "lenet", or "50mbit or 1gbit"; "" when no run has one.
std::string joined(const std::vector<RunRecord>& runs,
                   const std::function<std::string(const RunConfig&)>& get) {
  std::vector<std::string> seen;
  for (const RunRecord& run : runs) {
    const std::string value = get(run.config);
    if (value.empty() || std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
  }
  std::string text;
  for (const auto& value : seen) text += (text.empty() ? "" : " or ") + value;
  return text;
}

std::string joined(const std::vector<RunRecord>& runs, std::string RunConfig::*field) {
  return joined(runs, [&](const RunConfig& config) { return config.*field; });
}

std::string joined(const std::vector<RunRecord>& runs, double RunConfig::*field) {
  return joined(runs, [&](const RunConfig& config) {
    const double value = config.*field;
    return std::isfinite(value) ? fmt::format("{}", value) : std::string();
  });
}

std::string known_data(const std::string& name) {
  if (name == "mnist") return "MNIST";
  if (name == "cifar10") return "CIFAR-10";
  if (name == "text") return "Moby-Dick";
  return name;
}

std::string data_names(const std::vector<RunRecord>& runs) {
  return joined(runs, [](const RunConfig& config) { return known_data(config.data); });
}

std::string parameters(const RunConfig& config) {
  const double count = config.parameters;
  if (!std::isfinite(count)) return "";
  if (count >= 1e6) return fmt::format("{:.2f} million parameters", count / 1e6);
  return fmt::format("{:.0f} parameters", count);
}

// "50mbit,5ms" -> "50 Mbit/s, 5 ms". Returns other text unchanged.
std::string show_link(const std::string& text) {
  static const std::map<std::string, std::string, std::less<>> units{
      {"kbit", "kbit/s"}, {"mbit", "Mbit/s"}, {"gbit", "Gbit/s"},
      {"us", "µs"},       {"ms", "ms"},       {"s", "s"}};
  std::string shown;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t digits = std::min(part.find_first_not_of("0123456789."), part.size());
    const auto unit = units.find(part.substr(digits));
    if (digits == 0 || unit == units.end()) return text;
    shown +=
        fmt::format("{}{} {}", shown.empty() ? "" : ", ", part.substr(0, digits), unit->second);
    begin = end + 1;
  }
  return shown;
}

std::string link(const RunConfig& config) {
  if (config.link.empty()) return "";
  if (config.link == "unlimited") return "unlimited links";
  return fmt::format("an emulated link of {} per rank", show_link(config.link));
}

std::string batch(const RunConfig& config) {
  if (!std::isfinite(config.batch)) return "";
  return fmt::format("{} {}", config.batch, config.judged_by_loss ? "windows of text" : "images");
}

std::string epochs(const RunConfig& config) {
  if (!std::isfinite(config.epochs)) return "";
  return fmt::format("{:.4g} {}", config.epochs, config.epochs == 1 ? "epoch" : "epochs");
}

std::string transport(const RunConfig& config) {
  if (config.transport == "threads") return "threads of one process";
  if (config.transport.empty()) return "";
  return fmt::format("processes over {}", config.transport);
}

// Returns `before` + value + `after`, or "" for an empty value.
std::string phrase(const char* before, const std::string& value, const char* after = "") {
  return value.empty() ? "" : before + value + after;
}

std::string differing(const std::vector<RunRecord>& runs) {
  std::string names;
  for (const Setting& setting : settings(runs)) {
    if (setting.differs()) names += (names.empty() ? "" : ", ") + setting.name;
  }
  return names;
}

}  // namespace

std::string title(const std::vector<RunRecord>& runs) {
  const std::string model = joined(runs, &RunConfig::model);
  const std::string data = data_names(runs);
  std::string text = "thinreduce";
  if (!model.empty()) text += ": " + model;
  if (!data.empty()) text += " on " + data;
  if (const auto ranks = joined(runs, &RunConfig::ranks); !ranks.empty()) {
    text += fmt::format(", {} ranks", ranks);
  }
  const std::string links =
      joined(runs, [](const RunConfig& config) { return show_link(config.link); });
  if (!links.empty() && links != "unlimited") text += fmt::format(" at {}", links);
  return text;
}

std::string overview(const std::vector<RunRecord>& runs) {
  const std::string model = joined(runs, &RunConfig::model);
  std::string text = model.empty() ? "A network" : "The network " + model;
  text += phrase(" (", joined(runs, parameters), ")");
  text += phrase(" was trained on ", data_names(runs));
  text += phrase(" by ", joined(runs, &RunConfig::ranks), " ranks");
  text += phrase(" (", joined(runs, transport), ")");
  text += phrase(" over ", joined(runs, link));
  text += runs.size() == 1 ? "." : fmt::format(", in {} runs.", runs.size());
  text += phrase(" Each rank processed ", joined(runs, batch), " per step");
  text += phrase(" for ", joined(runs, &RunConfig::steps), " steps");
  text += phrase(" (", joined(runs, epochs), ")");
  text += phrase(" with optimizer ", joined(runs, &RunConfig::optimizer));
  text += phrase(", peak learning rate ", joined(runs, &RunConfig::learning_rate));
  text += phrase(", schedule ", joined(runs, &RunConfig::schedule));
  text += phrase(", seed ", joined(runs, &RunConfig::seed)) + ".";
  text +=
      " In every step each rank computes a gradient, and all ranks need the mean of these "
      "gradients. The runs differ in the method that reduces them; fp32 sends them uncompressed "
      "and "
      "is the reference.";
  text += phrase(" Machine: ", joined(runs, &RunConfig::cores), " cores");
  text += phrase(", ", joined(runs, &RunConfig::simd), " kernels") + ".";
  std::string html = fmt::format("<p>{}</p>\n", escape_html(text));
  if (const std::string names = differing(runs); !names.empty()) {
    html += fmt::format(
        "<p class=\"note\"><strong>Compare with care:</strong> the runs differ in more than the "
        "method: {}.</p>\n",
        escape_html(names));
  }
  const auto unfinished = std::count_if(
      runs.begin(), runs.end(), [](const RunRecord& run) { return run.status != "finished"; });
  if (unfinished > 0) {
    html += fmt::format(
        "<p class=\"note\"><strong>{} of {} runs did not finish.</strong> The table and the charts "
        "show the steps that they completed.</p>\n",
        unfinished, runs.size());
  }
  if (std::none_of(runs.begin(), runs.end(),
                   [](const RunRecord& run) { return run.config.method_name == "fp32"; })) {
    html +=
        "<p class=\"note\"><strong>There is no fp32 run,</strong> so the comparisons with fp32 are "
        "left out.</p>\n";
  }
  return html;
}

std::string summary_table(const std::vector<SummaryRow>& rows) {
  const auto cells = to_cells(rows);
  std::string html = "<table>\n<thead><tr>";
  for (const auto& cell : cells[0]) html += "<th scope=\"col\">" + escape_html(cell) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 1; r < cells.size(); ++r) {
    const SummaryRow& row = rows[r - 1];
    html +=
        fmt::format("<tr{}><th scope=\"row\"><span class=\"key\" data-run=\"{}\"></span>{}</th>",
                    row.reference ? " class=\"reference\"" : "", r - 1, escape_html(cells[r][0]));
    for (std::size_t i = 1; i < cells[r].size(); ++i) {
      const bool bad =
          (i + 1 == cells[r].size() && row.status != "finished") || cells[r][i] == "NO";
      html += fmt::format("<td{}>{}</td>", bad ? " class=\"bad\"" : "", escape_html(cells[r][i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n";
}

}  // namespace thinreduce::apps

#include "apps/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/report/assets.h"
#include "apps/report/overview.h"
#include "apps/report/plan_section.h"
#include "apps/report/series.h"
#include "apps/report/statistics.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::apps {
namespace {

using nlohmann::ordered_json;

// Returns a window narrow enough to show the schedule and wide enough to hide the noise of batches.
std::size_t smoothing_window(const RunRecord& run) {
  return std::max<std::size_t>(1, run.steps.size() / 25);
}

ordered_json to_json(const std::vector<Point>& points) {
  ordered_json curve{{"x", ordered_json::array()}, {"y", ordered_json::array()}};
  for (const Point& point : points) {
    curve["x"].push_back(point.x);
    // JSON has neither NaN nor infinity; both become gaps in the curve.
    curve["y"].push_back(std::isfinite(point.y) ? ordered_json(point.y) : ordered_json());
  }
  return curve;
}

// Returns the accuracy or the loss of all evaluations; nothing for a run that is judged by the
// other of the two.
ordered_json result_curve(const RunRecord& run, bool by_loss, double RunEvaluation::*x) {
  std::vector<Point> points;
  if (run.config.judged_by_loss != by_loss) return to_json(points);
  for (const RunEvaluation& evaluation : run.evaluations) {
    if (!std::isfinite(evaluation.*x)) continue;
    points.push_back({evaluation.*x, by_loss ? evaluation.loss : evaluation.accuracy});
  }
  return to_json(thin_out(points, kPointsPerCurve));
}

// Explains the columns of the results and the difference to fp32.
std::string result_legend(const std::vector<SummaryRow>& rows) {
  const char* when = "after the last step; for a run that did not finish, of its last evaluation. ";
  std::string text;
  std::string unit;
  if (any_judged_by_accuracy(rows)) {
    text += fmt::format("<b>Accuracy</b>: on all test images {}", when);
    unit = "percentage points";
  }
  if (any_judged_by_loss(rows)) {
    text += fmt::format(
        "<b>Loss</b>: on all test data, in nats per character for a language model, {}Less is "
        "better. ",
        when);
    unit += unit.empty() ? "nats" : ", or in nats for a language model";
  }
  return text + fmt::format("<b>vs fp32</b>: difference to the fp32 run in {}.", unit);
}

ordered_json loss_curve(const RunRecord& run) {
  std::vector<double> losses;
  for (const RunStep& step : run.steps) losses.push_back(step.loss);
  const std::vector<double> smoothed = smooth(losses, smoothing_window(run));
  std::vector<Point> points;
  for (std::size_t i = 0; i < smoothed.size(); ++i) {
    points.push_back({run.steps[i].step, smoothed[i]});
  }
  return to_json(thin_out(points, kPointsPerCurve));
}

// Returns means, because the means of the stages add up, unlike medians.
ordered_json stage_means(const RunRecord& run) {
  const auto mean = [&](double RunStep::*stage) -> ordered_json {
    double sum = 0;
    std::size_t count = 0;
    for (const RunStep& step : run.steps) {
      if (!std::isfinite(step.*stage)) continue;
      sum += step.*stage;
      ++count;
    }
    if (count == 0) return nullptr;
    return sum / static_cast<double>(count);
  };
  return {{"compute", mean(&RunStep::compute)}, {"exposed", mean(&RunStep::exposed)},
          {"encode", mean(&RunStep::encode)},   {"wire", mean(&RunStep::wire)},
          {"decode", mean(&RunStep::decode)},   {"wait", mean(&RunStep::wait)}};
}

// Returns the name without options: "gradiveq+qsgd".
std::string method_of(const std::string& spec) {
  try {
    return Spec::parse(spec).name();
  } catch (const Error&) {
    return spec.substr(0, spec.find(':'));  // written by another version
  }
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string script_json(const ordered_json& json) {
  const std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  std::string escaped;
  for (const char c : text) {
    // JSON has these characters only inside strings, where the escape is valid.
    if (c == '<' || c == '>' || c == '&') {
      escaped += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string fill(std::string_view text,
                 const std::map<std::string, std::string, std::less<>>& values) {
  std::string filled;
  while (!text.empty()) {
    const auto begin = text.find("{{");
    if (begin == std::string_view::npos) break;
    const auto end = text.find("}}", begin);
    ensure(end != std::string_view::npos, "every placeholder of the report's template has an end",
           begin, text.size());
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    const auto found = values.find(name);
    ensure(found != values.end(), "every placeholder of the report's template has a value", name);
    filled += text.substr(0, begin);
    filled += found->second;
    text.remove_prefix(end + 2);
  }
  return filled += text;
}

ordered_json chart_data(const std::vector<RunRecord>& runs, const std::vector<SummaryRow>& rows,
                        const std::vector<CodecResult>& codec) {
  const bool by_loss = !any_judged_by_accuracy(rows);
  ordered_json data{{"metric", by_loss ? "loss" : "accuracy"},
                    {"runs", ordered_json::array()},
                    {"codec", ordered_json::array()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    data["runs"].push_back({{"label", rows[i].label},
                            {"method", runs[i].config.method_name},
                            {"reference", rows[i].reference},
                            {"final", by_loss ? rows[i].loss : rows[i].accuracy},
                            {"time", result_curve(runs[i], by_loss, &RunEvaluation::seconds)},
                            {"bytes", result_curve(runs[i], by_loss, &RunEvaluation::bytes_sent)},
                            {"step", result_curve(runs[i], by_loss, &RunEvaluation::step)},
                            {"loss", loss_curve(runs[i])},
                            {"stages", stage_means(runs[i])}});
  }
  for (const CodecResult& result : codec) {
    data["codec"].push_back({{"label", short_spec(result.method)},
                             {"method", method_of(result.method)},
                             {"bits", result.bits},
                             {"nmse", result.nmse},
                             {"warmup", result.warmup}});
  }
  return data;
}

std::string make_page(const std::vector<RunRecord>& runs, const std::vector<SummaryRow>& rows,
                      const std::vector<CodecResult>& codec) {
  std::size_t window = 1;
  for (const RunRecord& run : runs) window = std::max(window, smoothing_window(run));
  const bool by_loss = !any_judged_by_accuracy(rows);
  return fill(assets::kPageHtml,
              {{"TITLE", escape_html(title(runs))},
               {"OVERVIEW", overview(runs)},
               {"SUMMARY", summary_table(rows)},
               {"RESULT_LEGEND", result_legend(rows)},
               {"RESULT_TITLE", by_loss ? "Test loss" : "Test accuracy"},
               {"RESULT", by_loss ? "loss" : "accuracy"},
               {"WORSE", by_loss ? "above" : "below"},
               {"PLAN", plan_section(runs, rows)},
               {"STATISTICS", statistics_section(runs, rows)},
               {"LOSS_WINDOW", fmt::format("{}", window)},
               {"RATE_DISTORTION", codec.empty() ? "" : std::string(assets::kRateDistortionHtml)},
               {"DATA", script_json(chart_data(runs, rows, codec))},
               {"UPLOT_LICENSE", escape_html(assets::kUplotLicense)},
               {"UPLOT_CSS", std::string(assets::kUplotCss)},
               {"UPLOT_JS", std::string(assets::kUplotJs)},
               {"PAGE_CSS", std::string(assets::kPageCss)},
               {"PAGE_JS", std::string(assets::kPageJs)}});
}

}  // namespace thinreduce::apps

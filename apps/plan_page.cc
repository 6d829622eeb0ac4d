#include "apps/plan_page.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <vector>

#include "apps/plan_rates.h"
#include "apps/report/page.h"
#include "apps/report/plan_section.h"
#include "apps/terminal.h"

namespace thinreduce::apps {
namespace {

constexpr const char* kStyle =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left;font-family:monospace}"
    "tr.chosen{background:#e8f1fb}tr.coarse{color:#777}svg{width:100%;height:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#444}.grid{stroke:#e5e5e5}"
    ".fastest{stroke:#1a1a1a;stroke-width:7;stroke-opacity:.15;fill:none}";
// Told apart by readers with colour blindness; `fp32` and `bf16` come first.
constexpr std::array kColours = {"#444444", "#999999", "#0072b2", "#56b4e9", "#d55e00", "#009e73",
                                 "#cc79a7", "#e69f00", "#7f3c8d", "#11a579", "#a5612c", "#3969ac"};

// A chart with logarithmic axes.
struct Chart {
  static constexpr double kWidth = 960;
  static constexpr double kHeight = 440;
  static constexpr double kLeft = 70;
  static constexpr double kRight = 720;  // names of the methods stand beyond
  static constexpr double kTop = 20;
  static constexpr double kBottom = 390;
  double min_seconds = 0;
  double max_seconds = 0;

  [[nodiscard]] static double x(double bits) {
    const double all = std::log10(kRates.back() / kRates.front());
    return kLeft + (kRight - kLeft) * std::log10(bits / kRates.front()) / all;
  }
  [[nodiscard]] double y(double seconds) const {
    const double all = std::log10(max_seconds / min_seconds);
    return kBottom - (kBottom - kTop) * std::log10(seconds / min_seconds) / all;
  }
};

// Points per curve: enough that its bends look round.
std::vector<double> finer_rates() {
  constexpr int kPoints = 120;
  std::vector<double> rates;
  for (int i = 0; i <= kPoints; ++i) {
    rates.push_back(kRates.front() *
                    std::pow(kRates.back() / kRates.front(), static_cast<double>(i) / kPoints));
  }
  return rates;
}

Chart scaled_to(const PlanBucket& bucket) {
  Chart chart{.min_seconds = 1e30, .max_seconds = 0};
  for (const PlanCandidate& candidate : bucket.candidates) {
    if (!candidate.tried) continue;
    for (const double bits : {kRates.front(), kRates.back()}) {
      const double seconds = std::max(1e-9, seconds_at(bucket, candidate, bits / 8));
      chart.min_seconds = std::min(chart.min_seconds, seconds);
      chart.max_seconds = std::max(chart.max_seconds, seconds);
    }
  }
  chart.min_seconds = std::pow(10, std::floor(std::log10(chart.min_seconds)));
  chart.max_seconds = std::pow(10, std::ceil(std::log10(chart.max_seconds * 1.001)));
  return chart;
}

template <typename Seconds>
std::string points(const Chart& chart, Seconds seconds) {
  std::string text;
  for (const double bits : finer_rates()) {
    text += fmt::format("{:.1f},{:.1f} ", Chart::x(bits), chart.y(seconds(bits / 8)));
  }
  return text;
}

std::string grid(const Chart& chart) {
  std::string text;
  for (const double bits : kRates) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        Chart::x(bits), Chart::kTop, Chart::kBottom, Chart::kBottom + 18,
        Link{.bytes_per_second = bits / 8, .latency = thinreduce::Seconds{0}}.to_string());
  }
  for (double seconds = chart.min_seconds; seconds <= chart.max_seconds * 1.01; seconds *= 10) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        chart.y(seconds), Chart::kLeft, Chart::kRight, Chart::kLeft - 6, chart.y(seconds) + 4,
        show_seconds(seconds));
  }
  return text;
}

// The names beside the ends of the curves, moved apart where they would overlap.
std::string names(const Chart& chart, const PlanBucket& bucket) {
  struct Name {
    double y;
    std::size_t candidate;
  };
  std::vector<Name> all;
  for (std::size_t i = 0; i < bucket.candidates.size(); ++i) {
    if (!bucket.candidates[i].tried) continue;
    all.push_back({chart.y(seconds_at(bucket, bucket.candidates[i], kRates.back() / 8)), i});
  }
  std::ranges::sort(all, {}, &Name::y);
  std::string text;
  double free = Chart::kTop;
  // The last names must still fit above the lower edge.
  for (std::size_t i = 0; i < all.size(); ++i) {
    constexpr double kLine = 15;
    const double last = Chart::kBottom - kLine * static_cast<double>(all.size() - 1 - i);
    const double y = std::min(std::max(all[i].y, free), std::max(free, last));
    free = y + kLine;
    const PlanCandidate& candidate = bucket.candidates[all[i].candidate];
    text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" style=\"fill:{}\">{}{}</text>\n",
                        Chart::kRight + 8, y + 4, kColours[all[i].candidate % kColours.size()],
                        escape_html(candidate.spec), candidate.allowed ? "" : " (too coarse)");
  }
  return text;
}

std::string chart_of(const PlanBucket& bucket) {
  const Chart chart = scaled_to(bucket);
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Predicted time per step against the "
      "bandwidth of the link\">\n{}",
      Chart::kWidth, Chart::kHeight, grid(chart));
  text += fmt::format(
      "<polyline class=\"fastest\" points=\"{}\"/>\n",
      points(chart, [&](double rate) { return seconds_at(bucket, best_at(bucket, rate), rate); }));
  for (std::size_t i = 0; i < bucket.candidates.size(); ++i) {
    const PlanCandidate& candidate = bucket.candidates[i];
    if (!candidate.tried) continue;
    text += fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n",
        kColours[i % kColours.size()], candidate.allowed ? "" : " stroke-dasharray=\"3 4\"",
        points(chart, [&](double rate) { return seconds_at(bucket, candidate, rate); }));
  }
  return text + names(chart, bucket) +
         fmt::format(
             "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">bandwidth of the link</text></svg>\n",
             (Chart::kLeft + Chart::kRight) / 2, Chart::kHeight - 8);
}

// Names the fastest method of each range of rates.
std::string ranges_of(const PlanBucket& bucket) {
  const auto name = [](double bits) {
    return Link{.bytes_per_second = bits / 8, .latency = thinreduce::Seconds{0}}.to_string();
  };
  std::string text = "<ul>\n";
  const PlanCandidate* current = nullptr;
  double since = 0;
  const auto close = [&](double until) {
    if (current == nullptr) return;
    text += fmt::format("<li><code>{}</code> is the fastest from {} to {}{}</li>\n",
                        escape_html(current->spec), name(since), name(until),
                        current == bucket.candidates.data() ? ": compressing does not pay" : "");
  };
  for (const double rate : finer_rates()) {
    const double bits = std::pow(10, std::round(std::log10(rate) * 50) / 50);
    const double shown = std::stod(fmt::format("{:.2g}", bits));
    const PlanCandidate& best = best_at(bucket, rate / 8);
    if (&best == current) continue;
    close(shown);
    current = &best;
    since = shown;
  }
  close(kRates.back());
  return text + "</ul>\n";
}

}  // namespace

std::string plan_page(const Plan& plan, const std::string& title) {
  const double mbit = plan.link.bytes_per_second * 8e-6;
  std::string body = fmt::format(
      "<h1>{}</h1>\n<p>Link as measured: {}, {:.3g} ms. The plan: {}.</p>\n", escape_html(title),
      mbit > 0 ? fmt::format("{:.3g} Mbit per second", mbit) : "no limit of the bandwidth",
      plan.link.latency.count() * 1e3, escape_html(plan.sentence()));
  if (const PlanBucket* largest = largest_bucket(plan)) {
    body += fmt::format(
        "<h2>Predicted time per step against the bandwidth of the link</h2>\n{}"
        "<p>Bucket {}, {} elements, alone on the link, with the latency that was measured. The "
        "wide band follows the fastest method within the error bound.</p>\n{}",
        chart_of(*largest), largest->id, largest->elements, ranges_of(*largest));
  }
  for (const PlanBucket& bucket : plan.buckets) {
    body += fmt::format("<h2>Bucket {}</h2>\n{}", bucket.id, plan_bucket_html(bucket));
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{}</title>\n<style>{}</style>\n{}</html>\n",
      escape_html(title), kStyle, body);
}

}  // namespace thinreduce::apps

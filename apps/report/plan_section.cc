#include "apps/report/plan_section.h"

#include <fmt/format.h>

#include <cmath>

#include "apps/plan_table.h"
#include "apps/report/page.h"
#include "apps/terminal.h"

namespace thinreduce::apps {
namespace {

// Returns a figure that is missing or no number as 0.
double figure(const JsonObject& json, const char* key) {
  const double value = json.number(key);
  return std::isfinite(value) ? value : 0;
}

// Returns a count; what no count can be is 0.
std::uint64_t count(const JsonObject& json, const char* key) {
  const double value = figure(json, key);
  return value >= 0 && value < 1e18 ? static_cast<std::uint64_t>(value) : 0;
}

PlanCandidate read_candidate(const JsonObject& json) {
  return {.spec = json.text("spec"),
          .tried = json.flag("tried"),
          .allowed = json.flag("allowed"),
          .error = figure(json, "error"),
          .latency = figure(json, "latency_seconds"),
          .encode = figure(json, "encode_seconds"),
          .decode = figure(json, "decode_seconds"),
          .wire = figure(json, "wire_seconds"),
          .seconds = figure(json, "seconds"),
          .exposed = figure(json, "exposed_seconds"),
          .bytes = figure(json, "bytes_sent")};
}

PlanBucket read_bucket(const JsonObject& json) {
  PlanBucket bucket;
  bucket.id = static_cast<std::uint32_t>(count(json, "id"));
  bucket.elements = count(json, "elements");
  bucket.ready = figure(json, "ready_seconds");
  bucket.spec = json.text("spec");
  bucket.reason = json.text("reason");
  for (const JsonObject& one : json.objects("candidates")) {
    bucket.candidates.push_back(read_candidate(one));
  }
  return bucket;
}

std::string cells(const char* tag, const std::vector<std::string>& texts) {
  std::string row;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const bool names_row = i == 0;
    row += names_row ? fmt::format("<th scope=\"row\">{}</th>", escape_html(texts[i]))
                     : fmt::format("<{0}>{1}</{0}>", tag, escape_html(texts[i]));
  }
  return row;
}

std::string describe(const Plan& plan) {
  return fmt::format(
      "The link as measured: {}. The plan: {}. A step was predicted to take {} from its first "
      "bucket to its last mean, with fp32 {}; the last steps took {}. Planning took {}, with {} "
      "round{} of trials; buckets changed their method {} time{}, and a change of the link was "
      "followed {} time{}.",
      escape_html(plan.link.to_string()), escape_html(plan.sentence()),
      show_seconds(plan.predicted), show_seconds(plan.uncompressed), show_seconds(plan.measured),
      show_seconds(plan.planning), plan.trials, plan.trials == 1 ? "" : "s", plan.changes,
      plan.changes == 1 ? "" : "s", plan.followed, plan.followed == 1 ? "" : "s");
}

}  // namespace

Plan read_plan(const JsonObject& json) {
  Plan plan;
  plan.active = true;
  plan.link = {.bytes_per_second = figure(json, "bytes_per_second"),
               .latency = Seconds(figure(json, "latency_seconds"))};
  plan.predicted = figure(json, "predicted_seconds");
  plan.uncompressed = figure(json, "fp32_seconds");
  plan.exposed = figure(json, "exposed_seconds");
  plan.measured = figure(json, "measured_seconds");
  plan.compute = figure(json, "compute_seconds");
  plan.planning = figure(json, "planning_seconds");
  plan.trials = count(json, "trials");
  plan.changes = count(json, "changes");
  plan.followed = count(json, "links_followed");
  plan.local_steps = count(json, "local_steps");
  plan.reason = json.text("reason");
  for (const JsonObject& one : json.objects("buckets")) plan.buckets.push_back(read_bucket(one));
  return plan;
}

std::string plan_bucket_html(const PlanBucket& bucket) {
  std::string text =
      fmt::format("<p>{} elements that may be compressed; the choice is <code>{}</code>: {}.</p>\n",
                  bucket.elements, escape_html(bucket.spec), escape_html(bucket.reason));
  std::string lines;
  for (const PlanCandidate& candidate : bucket.candidates) {
    if (!candidate.tried) continue;
    const char* kind = candidate.allowed ? "" : " class=\"coarse\"";
    if (candidate.spec == bucket.spec) kind = " class=\"chosen\"";
    lines += fmt::format("<tr{}>{}</tr>\n", kind, cells("td", plan_table_row(bucket, candidate)));
  }
  if (lines.empty()) return text;
  return text + fmt::format(
                    "<div class=\"scroll\">\n<table class=\"plan\">\n<thead><tr>{}</tr></thead>\n"
                    "<tbody>\n{}</tbody>\n</table>\n</div>\n",
                    cells("th", plan_table_heading()), lines);
}

std::string plan_section(const std::vector<RunRecord>& runs, const std::vector<SummaryRow>& rows) {
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].plan) continue;
    const Plan& plan = *runs[i].plan;
    text += fmt::format("<h3>{}</h3>\n<p>{}</p>\n", escape_html(rows[i].label), describe(plan));
    for (const PlanBucket& bucket : plan.buckets) {
      text += fmt::format("<details><summary>Bucket {}: <code>{}</code></summary>\n{}</details>\n",
                          bucket.id, escape_html(bucket.spec), plan_bucket_html(bucket));
    }
  }
  if (text.empty()) return "";
  return "<section id=\"plan\">\n<h2>Plan of auto</h2>\n" + text +
         "<p class=\"legend\">Predictions for the whole bucket from trials on a sample of its "
         "gradient. <b>Error</b>: squared error of the mean, relative to its sum of squares. "
         "<b>In all</b>: from the start to the mean, for the bucket alone on the link. "
         "<b>Exposed</b>: from the step's last submitted bucket to its last mean, with this method "
         "in this bucket and the chosen ones in the others.</p>\n</section>\n";
}

}  // namespace thinreduce::apps

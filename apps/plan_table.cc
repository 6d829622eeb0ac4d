#include "apps/plan_table.h"

#include <fmt/format.h>

#include "apps/terminal.h"

namespace thinreduce::apps {

std::vector<std::string> plan_table_heading() {
  return {"method", "error",   "encode",  "wire",      "decode", "latency",
          "in all", "exposed", "vs fp32", "sent/rank", ""};
}

std::vector<std::string> plan_table_row(const PlanBucket& bucket, const PlanCandidate& candidate) {
  const char* remark = candidate.allowed ? "" : "too coarse";
  if (candidate.spec == bucket.spec) remark = "chosen";
  const double fp32 = bucket.candidates[0].seconds;
  return {candidate.spec,
          fmt::format("{:.2g}", candidate.error),
          show_seconds(candidate.encode),
          show_seconds(candidate.wire),
          show_seconds(candidate.decode),
          show_seconds(candidate.latency),
          show_seconds(candidate.seconds),
          show_seconds(candidate.exposed),
          fmt::format("{:.2f}x", candidate.seconds > 0 ? fp32 / candidate.seconds : 1),
          show_bytes(candidate.bytes),
          remark};
}

}  // namespace thinreduce::apps

// What the runs add up to: readable names, the fp32 run that each is compared with, one row each.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/run.h"

namespace thinreduce::apps {

// A spec without the options that have their default value; other text as it is.
[[nodiscard]] std::string short_spec(const std::string& spec);

// A setting of the training that one expects to be the same in all runs that are compared.
struct Setting {
  std::string name;
  std::vector<std::string> values;  // one a run; "" where the run does not say
  [[nodiscard]] bool differs() const;
};
[[nodiscard]] std::vector<Setting> settings(const std::vector<RunRecord>& runs);

struct SummaryRow {
  std::string label;  // unique among the rows
  std::string status;
  bool reference = false;  // an fp32 run
  double accuracy = kMissing;
  double difference = kMissing;  // to the reference with the same settings
  double step_seconds = kMissing;
  double seconds = kMissing;
  double speedup = kMissing;  // time a step of the reference over this one's
  double bytes_a_step = kMissing;
  double ratio = kMissing;
  std::optional<bool> identical;
  double steps_done = kMissing;
  double steps = kMissing;  // of the whole run
};
[[nodiscard]] std::vector<SummaryRow> summarise(const std::vector<RunRecord>& runs);

// The rows as people read them; the first row is the heading.
[[nodiscard]] std::vector<std::vector<std::string>> to_cells(const std::vector<SummaryRow>& rows);
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

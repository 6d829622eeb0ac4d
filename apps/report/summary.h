// The table of results: one row per run, with a readable name and a comparison with fp32.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/run.h"

namespace thinreduce::apps {

// Returns a spec without the options that have their default value; other text unchanged.
[[nodiscard]] std::string short_spec(const std::string& spec);

// A setting of the training that should be the same in all compared runs.
struct Setting {
  std::string name;
  std::vector<std::string> values;  // one per run; "" if the run lacks it
  [[nodiscard]] bool differs() const;
};
[[nodiscard]] std::vector<Setting> settings(const std::vector<RunRecord>& runs);

struct SummaryRow {
  std::string label;  // unique among the rows
  std::string status;
  bool reference = false;  // an fp32 run
  bool judged_by_loss = false;
  double accuracy = kMissing;  // missing for a run that is judged by its loss
  double loss = kMissing;      // on the test data
  // Of the accuracy, or of the loss if the run is judged by it, to the reference with the same
  // settings.
  double difference = kMissing;
  double step_seconds = kMissing;
  double seconds = kMissing;
  double speedup = kMissing;  // time per step of the reference divided by this one's
  double bytes_per_step = kMissing;
  double fewer_bytes = kMissing;  // bytes per step of the reference / bytes per step
  double ratio = kMissing;
  std::optional<bool> identical;
  double steps_done = kMissing;
  double steps = kMissing;  // of the whole run
};
[[nodiscard]] std::vector<SummaryRow> summarise(const std::vector<RunRecord>& runs);

// Returns whether any run is judged by its loss or by its accuracy; decides columns and charts.
[[nodiscard]] bool any_judged_by_loss(const std::vector<SummaryRow>& rows);
[[nodiscard]] bool any_judged_by_accuracy(const std::vector<SummaryRow>& rows);

// Returns the rows as text; the first row is the heading.
[[nodiscard]] std::vector<std::vector<std::string>> to_cells(const std::vector<SummaryRow>& rows);
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<SummaryRow>& rows);

}  // namespace thinreduce::apps

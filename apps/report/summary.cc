#include "apps/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "apps/terminal.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::apps {
namespace {

std::string show_number(double value) {
  return std::isnan(value) ? "" : fmt::format("{}", value);
}

std::string show_signed(double difference, int decimals) {
  if (!std::isfinite(difference)) return "–";
  // A true minus sign, as wide as the plus; a value that rounds to 0 has neither.
  const std::string text = fmt::format("{:.{}f}", std::abs(difference), decimals);
  if (text.find_first_not_of("0.") == std::string::npos) return "±" + text;
  return (difference < 0 ? "−" : "+") + text;
}

// Accuracies differ by percentage points, losses by nats.
std::string show_difference(const SummaryRow& row) {
  return row.judged_by_loss ? show_signed(row.difference, 3) : show_signed(row.difference * 100, 2);
}

bool same_settings(const std::vector<Setting>& all, std::size_t a, std::size_t b) {
  return std::all_of(all.begin(), all.end(), [&](const Setting& setting) {
    return setting.name == "seed" || setting.values[a] == setting.values[b];
  });
}

std::vector<std::string> labels(const std::vector<RunRecord>& runs,
                                const std::vector<Setting>& all) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) names.push_back(short_spec(run.config.method));
  const auto tell_apart = [&](const std::function<std::string(std::size_t)>& addition) {
    const std::vector<std::string> before = names;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::count(before.begin(), before.end(), before[i]) > 1) names[i] += addition(i);
    }
  };
  tell_apart([&](std::size_t i) {
    std::string text;
    for (const Setting& setting : all) {
      if (!setting.differs()) continue;
      const bool bare = setting.name == "link" || setting.name == "model" || setting.name == "data";
      text += fmt::format("{}{}{}", text.empty() ? " " : ", ", bare ? "" : setting.name + " ",
                          setting.values[i]);
    }
    return text;
  });
  tell_apart([&](std::size_t i) {
    // For a folder given as "run/" filename() alone would be empty.
    const auto folder = (runs[i].folder / "").parent_path();
    return fmt::format(" ({})", folder.filename().string());
  });
  tell_apart([&](std::size_t i) { return fmt::format(" #{}", i + 1); });
  return names;
}

}  // namespace

std::string short_spec(const std::string& spec) {
  try {
    return Spec::parse(spec).short_text();
  } catch (const Error&) {
    return spec;  // written by another version
  }
}

bool Setting::differs() const {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end();
}

std::vector<Setting> settings(const std::vector<RunRecord>& runs) {
  std::vector<Setting> all{{"data", {}},      {"model", {}},    {"ranks", {}},
                           {"transport", {}}, {"link", {}},     {"batch", {}},
                           {"optimizer", {}}, {"schedule", {}}, {"learning rate", {}},
                           {"steps", {}},     {"seed", {}}};
  for (const RunRecord& run : runs) {
    const RunConfig& config = run.config;
    const std::vector<std::string> values{config.data,
                                          config.model,
                                          show_number(config.ranks),
                                          config.transport,
                                          config.link,
                                          show_number(config.batch),
                                          config.optimizer,
                                          config.schedule,
                                          show_number(config.learning_rate),
                                          show_number(config.steps),
                                          show_number(config.seed)};
    for (std::size_t i = 0; i < all.size(); ++i) all[i].values.push_back(values[i]);
  }
  return all;
}

std::vector<SummaryRow> summarise(const std::vector<RunRecord>& runs) {
  const std::vector<Setting> all = settings(runs);
  const std::vector<std::string> names = labels(runs, all);
  std::vector<SummaryRow> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    SummaryRow row{.label = names[i],
                   .status = run.status,
                   .reference = run.config.method_name == "fp32",
                   .judged_by_loss = run.config.judged_by_loss,
                   .accuracy = run.config.judged_by_loss ? kMissing : run.accuracy,
                   .loss = run.loss,
                   .step_seconds = run.step_seconds,
                   .seconds = run.seconds,
                   .bytes_per_step = run.bytes_sent / run.steps_done,
                   .ratio = run.ratio,
                   .identical = run.identical,
                   .steps_done = run.steps_done,
                   .steps = run.config.steps};
    // The reference is the first fp32 run with the same settings, if possible with the same seed.
    const RunRecord* reference = nullptr;
    const RunRecord* twin = nullptr;
    for (std::size_t j = 0; j < runs.size(); ++j) {
      if (runs[j].config.method_name != "fp32" || !same_settings(all, i, j)) continue;
      if (reference == nullptr) reference = &runs[j];
      if (twin == nullptr && runs[j].config.seed == run.config.seed) twin = &runs[j];
    }
    if (twin != nullptr) reference = twin;
    if (reference != nullptr && !row.reference) {
      row.speedup = reference->step_seconds / run.step_seconds;
      row.fewer_bytes = reference->bytes_sent / reference->steps_done / row.bytes_per_step;
      // The results of unfinished runs can't be compared.
      if (reference->status == "finished" && run.status == "finished") {
        row.difference =
            row.judged_by_loss ? run.loss - reference->loss : run.accuracy - reference->accuracy;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

bool any_judged_by_loss(const std::vector<SummaryRow>& rows) {
  return std::ranges::any_of(rows, &SummaryRow::judged_by_loss);
}

bool any_judged_by_accuracy(const std::vector<SummaryRow>& rows) {
  return rows.empty() || !std::ranges::all_of(rows, &SummaryRow::judged_by_loss);
}

std::vector<std::vector<std::string>> to_cells(const std::vector<SummaryRow>& rows) {
  std::vector<std::vector<std::string>> cells{{"method"}};
  if (any_judged_by_accuracy(rows)) cells[0].emplace_back("accuracy %");
  if (any_judged_by_loss(rows)) cells[0].emplace_back("loss");
  for (const char* title : {"vs fp32", "time/step", "total time", "speedup", "bytes/step",
                            "fewer bytes", "ratio", "same bits", "status"}) {
    cells[0].emplace_back(title);
  }
  for (const SummaryRow& row : rows) {
    std::string status = row.status;
    if (status != "finished" && std::isfinite(row.steps_done)) {
      status += fmt::format(", {}", row.steps_done);
      if (std::isfinite(row.steps)) status += fmt::format(" of {}", row.steps);
      status += " steps";
    }
    const auto number = [](double value, const auto& show) {
      return std::isfinite(value) ? show(value) : std::string("–");
    };
    auto& line = cells.emplace_back(std::vector<std::string>{row.label});
    if (any_judged_by_accuracy(rows)) {
      line.push_back(number(row.accuracy, [](double v) { return fmt::format("{:.2f}", v * 100); }));
    }
    if (any_judged_by_loss(rows)) {
      line.push_back(number(row.loss, [](double v) { return fmt::format("{:.3f}", v); }));
    }
    line.insert(
        line.end(),
        {row.reference ? "reference" : show_difference(row), number(row.step_seconds, show_seconds),
         number(row.seconds, show_seconds),
         row.reference ? "1.00×"
                       : number(row.speedup, [](double v) { return fmt::format("{:.2f}×", v); }),
         number(row.bytes_per_step, show_bytes),
         row.reference
             ? "1.0×"
             : number(row.fewer_bytes, [](double v) { return fmt::format("{:.1f}×", v); }),
         number(row.ratio, [](double v) { return fmt::format("{:.1f}×", v); }),
         !row.identical.has_value() ? "–"
         : *row.identical           ? "yes"
                                    : "NO",
         status});
  }
  return cells;
}

nlohmann::ordered_json to_json(const std::vector<SummaryRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const SummaryRow& row : rows) {
    nlohmann::ordered_json identical;
    if (row.identical.has_value()) identical = *row.identical;
    list.push_back({{"method", row.label},
                    {"status", row.status},
                    {"metric", row.judged_by_loss ? "loss" : "accuracy"},
                    {"accuracy", row.accuracy},
                    {"loss", row.loss},
                    {"difference", row.difference},
                    {"step_seconds", row.step_seconds},
                    {"seconds", row.seconds},
                    {"speedup", row.speedup},
                    {"bytes_a_step", row.bytes_per_step},
                    {"fewer_bytes", row.fewer_bytes},
                    {"ratio", row.ratio},
                    {"identical", identical},
                    {"steps", row.steps_done}});
  }
  return list;
}

}  // namespace thinreduce::apps

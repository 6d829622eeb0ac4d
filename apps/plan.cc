// `thinreduce plan`: what `auto` would choose on a link, and why.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "apps/commands.h"
#include "apps/files.h"
#include "apps/model_gradients.h"
#include "apps/plan_json.h"
#include "apps/plan_page.h"
#include "apps/plan_rates.h"
#include "apps/plan_table.h"
#include "apps/synthetic.h"
#include "apps/terminal.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/plan/recommend.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

// After the first steps, as fp32, come the trials; the rest show whether the plan keeps its word.
constexpr int kSteps = 10;

// The gradients of one rank.
class Gradients {
 public:
  explicit Gradients(const PlanOptions& options) : options_(options) {
    if (!options.gradients.empty()) recorded_.emplace(options.gradients);
  }

  [[nodiscard]] std::vector<BucketLayout> layouts() const {
    if (recorded_) return recorded_->layouts();
    return {{.id = 0, .elements = options_.floats, .tensors = {}}};
  }
  void fill(int rank, int step, const BucketLayout& layout, std::span<float> values) const {
    const auto number = static_cast<std::uint64_t>(step);
    if (!recorded_) return synthetic_gradient({rank, number}, values);
    const auto& steps = recorded_->steps();
    recorded_->read(steps[number % steps.size()], rank % recorded_->ranks(), layout, values);
  }

 private:
  const PlanOptions& options_;
  std::optional<RecordedGradients> recorded_;
};

// Returns the spec with trials of all candidates: the table is to show more than the choice.
std::string spec_with_all_trials(const std::string& text) {
  Spec spec = Spec::parse(text);
  spec.options.values["try"] = "all";
  return spec.full_text();
}

Plan make_plan(const PlanOptions& options, const std::shared_ptr<Transport>& transport) {
  const Gradients gradients(options);
  std::vector<std::vector<float>> values;  // outlive the session, which writes to them
  Session session(transport, {.spec = spec_with_all_trials(options.spec),
                              .timeout = options.launch.timeout,
                              .patience = options.launch.patience,
                              .threads = options.launch.threads});
  std::vector<BucketHandle> buckets;
  for (const BucketLayout& layout : gradients.layouts()) {
    buckets.push_back(session.add_bucket(layout));
    values.emplace_back(layout.elements);
  }
  const bool quiet = options.json || transport->rank() != 0;
  Progress progress("steps", kSteps, quiet);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      gradients.fill(transport->rank(), step, buckets[i].layout(), values[i]);
    }
    std::vector<std::future<Report>> done;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      done.push_back(session.submit(buckets[i], values[i]));
    }
    for (auto& one : done) one.get();
    static_cast<void>(transport->now());  // a virtual clock must know that this rank waited
    progress.advance();
  }
  Plan plan = session.plan();
  // The compute time of this loop is not that of a training: --compute gives it.
  recommend_for(plan, options.compute);
  return plan;
}

void print_bucket(const PlanBucket& bucket) {
  std::vector<std::vector<std::string>> rows{plan_table_heading()};
  for (const PlanCandidate& candidate : bucket.candidates) {
    if (candidate.tried) rows.push_back(plan_table_row(bucket, candidate));
  }
  fmt::print("bucket {}: {} elements that may be compressed\n{}", bucket.id, bucket.elements,
             table(rows));
  fmt::print("{}\n", wrapped(fmt::format("{}: {}.", bucket.spec, bucket.reason), 0));
}

void print_rates(const PlanBucket& bucket) {
  std::vector<std::vector<std::string>> rows{{"rate", "fastest", "time", "vs fp32"}};
  for (const double bits : kRates) {
    const PlanCandidate& best = best_at(bucket, bits / 8);
    const double seconds = seconds_at(bucket, best, bits / 8);
    rows.push_back(
        {Link{.bytes_per_second = bits / 8, .latency = Seconds{0}}.to_string(), best.spec,
         show_seconds(seconds),
         fmt::format("{:.2f}x", seconds_at(bucket, bucket.candidates[0], bits / 8) / seconds)});
  }
  fmt::print("bucket {} at other rates, with the same latency:\n{}\n", bucket.id, table(rows));
}

// Returns a sentence on the gradients of a folder, which a model's are as well.
std::string describe_gradients(const PlanOptions& options, int ranks) {
  const int recorded = RecordedGradients(options.gradients).ranks();
  std::string text = options.model.empty()
                         ? fmt::format("gradients recorded on {} ranks", recorded)
                         : fmt::format("gradients of the first {} steps of {} on {} ranks",
                                       ModelGradients::kSteps, options.model, recorded);
  if (recorded < ranks) {
    text += "; further ranks repeat them, so that errors look smaller than they are";
  }
  return text;
}

void print(const Plan& plan, const PlanOptions& options, int ranks) {
  fmt::print("{} ranks; the link as measured: {}; spec {}\n", ranks, plan.link.to_string(),
             options.spec);
  if (!options.gradients.empty()) {
    fmt::print("{}", wrapped(describe_gradients(options, ranks), 0));
  }
  fmt::print("\n");
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.candidates.empty()) {
      fmt::print(
          "bucket {}: all its tensors are sent uncompressed, because they are 1-D or small\n\n",
          bucket.id);
    } else {
      print_bucket(bucket);
    }
  }
  if (const PlanBucket* largest = largest_bucket(plan)) print_rates(*largest);
  fmt::print("{}", wrapped("Plan: " + plan.sentence() + ".", 0));
  if (plan.measured > 0) {
    fmt::print("{}",
               wrapped(fmt::format("The last step took {}.", show_seconds(plan.measured)), 0));
  }
}

}  // namespace

int plan(const PlanOptions& given) {
  PlanOptions options = given;
  std::optional<ModelGradients> computed;
  if (!options.model.empty()) {
    computed.emplace(ModelGradientsOptions{
        .model = options.model, .ranks = ranks_of(options.launch), .data_dir = options.data_dir});
    options.gradients = computed->folder();
  }
  // A folder that can't be read is one error, not one per rank. A rank that another launcher
  // started must meet the others to tell them.
  if (!options.gradients.empty() && starts_ranks(options.launch)) {
    static_cast<void>(RecordedGradients(options.gradients));
  }
  return launch(options.launch, [&](const std::shared_ptr<Transport>& transport) {
    const Plan made = make_plan(options, transport);
    if (transport->rank() != 0) return;
    if (options.json) {
      Json json = to_json(made);
      json["ranks"] = transport->size();
      if (!options.model.empty()) json["model"] = options.model;
      if (!options.gradients.empty()) {
        json["recorded_ranks"] = RecordedGradients(options.gradients).ranks();
      }
      fmt::print("{}\n", json.dump(2));
    } else {
      print(made, options, transport->size());
    }
    if (!options.html.empty()) {
      write_text(options.html,
                 plan_page(made, fmt::format("Plan for {} ranks", transport->size())));
    }
  });
}

}  // namespace thinreduce::apps

// `thinreduce bench reduce`: measures the time of a whole all-reduce, against fp32, bf16 and the
// backend's own all-reduce in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/distortion.h"
#include "apps/gather_values.h"
#include "apps/plan_json.h"
#include "apps/resnet_layout.h"
#include "apps/synthetic.h"
#include "apps/terminal.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// One rank's side of the whole benchmark.
class RankBench {
 public:
  RankBench(const BenchReduceOptions& options, std::shared_ptr<Transport> transport)
      : options_(options),
        transport_(std::move(transport)),
        simulated_(dynamic_cast<SimulatedTransport*>(transport_.get())),
        values_(options.floats),
        layout_(bench_layout(options.shapes, options.floats)),
        quiet_(options.json || transport_->rank() != 0) {}

  void run() {
    measure_fp32();
    measure_bf16();
    auto results = Json::array();
    for (const auto& spec : options_.specs) results.push_back(measure(spec));
    if (transport_->rank() == 0) print(results);
  }

 private:
  // Returns the seconds that `work` takes on the slowest rank, with all ranks starting together.
  template <typename Work>
  double timed(Work&& work) {
    if (simulated_ != nullptr) {
      simulated_->align();
      simulated_->begin_chain();
    } else {
      barrier(*transport_, options_.launch.timeout);
    }
    const auto start = transport_->now();
    work();
    const double seconds = Seconds(transport_->now() - start).count();
    if (simulated_ != nullptr) chain_ = simulated_->longest_chain();
    return largest(gather_values(*transport_, options_.launch.timeout, seconds));
  }

  [[nodiscard]] SessionOptions session_options(const std::string& spec) const {
    return {.spec = spec,
            .timeout = options_.launch.timeout,
            .patience = options_.launch.patience,
            .check_replicas_every = 0,
            .threads = options_.threads,
            .momentum_inside_ok = true};
  }

  // fp32 and the backend's own all-reduce take turns, so that a busy machine slows both.
  void measure_fp32() {
    Session session(transport_, session_options("fp32"));
    const auto bucket = session.add_bucket(layout_);
    Progress progress("fp32", static_cast<std::size_t>(options_.steps) + 1, quiet_);
    std::vector<double> ours;
    std::vector<double> native;
    for (int step = 0; step <= options_.steps; ++step) {
      synthetic_gradient({transport_->rank(), 0}, values_);
      const double seconds = timed([&] { session.submit(bucket, values_).get(); });
      if (step > 0) ours.push_back(seconds);
      if (simulated_ != nullptr) continue;  // has no all-reduce of its own
      bool has_native = false;
      const WaitLimits limits(options_.launch.timeout);
      const double reference = timed([&] { has_native = transport_->native_sum(values_, limits); });
      if (step > 0 && has_native) native.push_back(reference);
      progress.advance();
    }
    fp32_seconds_ = median(ours);
    if (!native.empty()) reference_seconds_ = median(native);
  }

  void measure_bf16() {
    Session session(transport_, session_options("bf16"));
    const auto bucket = session.add_bucket(layout_);
    std::vector<double> seconds;
    for (int step = 0; step <= options_.steps; ++step) {
      synthetic_gradient({transport_->rank(), 0}, values_);
      const double took = timed([&] { session.submit(bucket, values_).get(); });
      if (step > 0) seconds.push_back(took);
    }
    bf16_seconds_ = median(seconds);
  }

  Json measure(const std::string& text) {
    const Spec spec = Spec::parse(text);
    const bool records = transport_->rank() == 0;
    std::vector<double> seconds;
    std::vector<double> all_seconds;
    std::vector<double> latency;
    Report last;
    bool identical = true;
    std::uint64_t chain = 0;
    Json whole;
    Json planned;
    second_moment_.resize(spec.info->second_moment ? options_.floats : 0);
    synthetic_second_moment(second_moment_);
    // Sums over all compressed steps, since a method may send elements of one step in a later one.
    std::vector<float> applied(records ? options_.floats : 0);
    std::vector<float> wanted(records ? options_.floats : 0);
    {
      Session session(transport_, session_options(text));
      const auto bucket = session.add_bucket(layout_);
      const auto reduce = [&] { return session.submit(bucket, values_, second_moment_).get(); };
      const Cycle cycle = spec.info->cycle(spec.options);
      const auto uncompressed = static_cast<int>(cycle.start);
      // The first compressed step touches memory for the first time.
      const int warmup = options_.warmup >= 0 ? options_.warmup : uncompressed + 1;
      const int steps = std::max(warmup + options_.steps, uncompressed + 1);
      const std::uint64_t cycle_steps = options_.cycle ? cycle.steps : 0;
      Progress progress(spec.full_text(), static_cast<std::size_t>(steps) + cycle_steps, quiet_);
      for (int step = 0; step < steps; ++step) {
        synthetic_gradient({transport_->rank(), static_cast<std::uint64_t>(step)}, values_);
        const double took = timed([&] { last = reduce(); });
        if (step >= warmup) seconds.push_back(took);
        all_seconds.push_back(took);
        chain = chain_;
        const auto hashes = gather_values(*transport_, options_.launch.timeout,
                                          checksum(std::as_bytes(std::span(values_))));
        identical = identical && std::count(hashes.begin(), hashes.end(), hashes[0]) ==
                                     static_cast<std::ptrdiff_t>(hashes.size());
        if (records && step >= uncompressed) add_means(step, applied, wanted);
        progress.advance();
      }
      if (cycle_steps > 0) whole = measure_cycle(reduce, cycle_steps, progress);
      if (spec.is_auto()) planned = to_json(session.plan());
      std::vector<float> small(1000, 1.0F);
      // Virtual time needs one try: other programs do not disturb it, and 1,024 ranks take long.
      const int tries = simulated_ != nullptr ? 1 : 100;
      for (int i = 0; i < tries; ++i) latency.push_back(timed([&] { session.reduce(1, small); }));
    }
    const auto bytes = gather_values(*transport_, options_.launch.timeout, last.bytes_sent);
    const auto chains = gather_values(*transport_, options_.launch.timeout, chain);
    const auto longest = *std::max_element(chains.begin(), chains.end());
    return describe(spec, seconds, last,
                    {{"bytes_sent", *std::max_element(bytes.begin(), bytes.end())},
                     {"latencies", simulated_ != nullptr ? Json(longest) : Json(nullptr)},
                     {"identical", identical},
                     {"nmse", normalised_error(applied, wanted)},
                     {"latency_us", median(latency) * 1e6},
                     {"step_seconds", all_seconds},
                     {"cycle", whole},
                     {"plan", planned}});
  }

  // Returns means over the steps after which the method's pattern repeats.
  template <typename Reduce>
  Json measure_cycle(const Reduce& reduce, std::uint64_t steps, Progress& progress) {
    double seconds = 0;
    std::uint64_t sent = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
      synthetic_gradient({transport_->rank(), 1'000'000 + step}, values_);
      Report report;
      seconds += timed([&] { report = reduce(); });
      sent += report.bytes_sent;
      progress.advance();
    }
    const auto all = gather_values(*transport_, options_.launch.timeout, sent);
    const double mean = seconds / static_cast<double>(steps);
    return {{"steps", steps},
            {"seconds", mean},
            {"speedup", fp32_seconds_ / mean},
            {"bytes_sent", *std::max_element(all.begin(), all.end()) / steps}};
  }

  // Adds the mean that the method delivered and the true mean of this step to the sums.
  void add_means(int step, std::vector<float>& applied, std::vector<float>& wanted) {
    const float part = 1.0F / static_cast<float>(transport_->size());
    for (std::size_t i = 0; i < values_.size(); ++i) applied[i] += values_[i];
    for (int rank = 0; rank < transport_->size(); ++rank) {
      synthetic_gradient({rank, static_cast<std::uint64_t>(step)}, values_);
      for (std::size_t i = 0; i < values_.size(); ++i) wanted[i] += values_[i] * part;
    }
  }

  // `seconds` are of the slowest rank; stage times are averaged over the ranks.
  Json describe(const Spec& spec, const std::vector<double>& seconds, const Report& last,
                const Json& more) {
    const auto average = [&](double value) {
      const auto all = gather_values(*transport_, options_.launch.timeout, value);
      double sum = 0;
      for (const double one : all) sum += one;
      return sum / static_cast<double>(all.size());
    };
    const double typical = median(seconds);
    const auto bytes = static_cast<double>(options_.floats * sizeof(float));
    Json result{
        {"method", spec.full_text()},
        {"ranks", transport_->size()},
        {"floats", options_.floats},
        {"shapes", options_.shapes},
        {"transport", options_.launch.transport},
        {"link", link_text(options_.launch)},
        {"simulated", simulated_ != nullptr},
        {"steps", options_.steps},
        {"threads", options_.threads},
        {"simd", kernels::active_target()},
        {"seconds", typical},
        {"fp32_seconds", fp32_seconds_},
        {"bf16_seconds", bf16_seconds_},
        {"speedup", fp32_seconds_ / typical},
        {"reference_seconds", nullptr},
        {"fp32_link_seconds", nullptr},
        {"ratio", last.payload_bytes > 0 ? bytes / static_cast<double>(last.payload_bytes) : 0}};
    if (reference_seconds_) result["reference_seconds"] = *reference_seconds_;
    const double rate = slowest_link();
    const double world = transport_->size();
    if (rate > 0) result["fp32_link_seconds"] = 2 * (world - 1) / world * bytes / rate;
    result.update(more);
    result["stages"] = {{"encode", average(last.stages.encode)},
                        {"wire", average(last.stages.wire)},
                        {"decode", average(last.stages.decode)},
                        {"wait", average(last.stages.wait)}};
    for (const auto& [name, value] : last.statistics) result["statistics"][name] = value;
    return result;
  }

  // Returns the bytes per second of the slowest rank's link; 0: unlimited.
  [[nodiscard]] double slowest_link() const {
    if (!options_.launch.simulate) return options_.launch.link.bytes_per_second;
    double slowest = 0;
    const auto take = [&](double rate) {
      if (rate > 0 && (slowest == 0 || rate < slowest)) slowest = rate;
    };
    for (int rank = 0; rank < transport_->size(); ++rank) {
      take(options_.launch.simulate->of(rank).bytes_per_second);
    }
    for (const RegionPath& path : options_.launch.simulate->paths) take(path.link.bytes_per_second);
    return slowest;
  }

  void print(const Json& results) const {
    if (options_.json) {
      fmt::print("{}\n", (results.size() == 1 ? results[0] : results).dump(2));
      return;
    }
    fmt::print("{} ranks ({}), {} floats, {}, link {}, kernels {}; {}{}\n\n", transport_->size(),
               options_.launch.transport, options_.floats, describe_shapes(options_.shapes),
               link_text(options_.launch), kernels::active_target(),
               simulated_ != nullptr ? "virtual " : "",
               options_.steps == 1 ? "times of one step"
                                   : fmt::format("times are medians of {} steps", options_.steps));
    std::vector<std::vector<std::string>> rows{{"method", "time", "vs fp32", "sent/rank", "ratio",
                                                "encode", "wire", "decode", "wait", "nmse",
                                                "same bits"}};
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Json& result = results[i];
      const auto stage = [&](const char* name) {
        return show_seconds(result["stages"][name].get<double>());
      };
      // The spec as given, since the full text would not fit on the line.
      rows.push_back({options_.specs[i], show_seconds(result["seconds"].get<double>()),
                      fmt::format("{:.2f}x", result["speedup"].get<double>()),
                      show_bytes(result["bytes_sent"].get<double>()),
                      fmt::format("{:.1f}x", result["ratio"].get<double>()), stage("encode"),
                      stage("wire"), stage("decode"), stage("wait"),
                      fmt::format("{:.2g}", result["nmse"].get<double>()),
                      result["identical"].get<bool>() ? "yes" : "NO"});
    }
    fmt::print("{}\n", table(rows));
    fmt::print("The baseline, a run of fp32 by itself, takes {}; one of bf16 takes {}",
               show_seconds(fp32_seconds_), show_seconds(bf16_seconds_));
    if (!results[0]["fp32_link_seconds"].is_null()) {
      fmt::print("; the bytes of fp32 alone take {} on the slowest link",
                 show_seconds(results[0]["fp32_link_seconds"].get<double>()));
    }
    if (reference_seconds_) {
      fmt::print("; the all-reduce of {} takes {} (thinreduce's fp32 takes {:.2f} times as long)",
                 options_.launch.transport, show_seconds(*reference_seconds_),
                 fp32_seconds_ / *reference_seconds_);
    }
    fmt::print("\nA bucket of 1,000 floats takes {:.0f} µs with {}.\n",
               results[0]["latency_us"].get<double>(), options_.specs[0]);
    const auto min = SessionOptions{}.min_elements;
    const bool compresses = options_.floats >= min;
    if (!compresses) {
      fmt::print(
          "Every method sends so few floats uncompressed, so the rows differ by chance; "
          "compare methods with --floats {} or more.\n",
          min);
    }
    fmt::print("{}", notes_on_synthetic(options_.specs));
    for (const auto& result : results) {
      if (const Json& cycle = result["cycle"]; !cycle.is_null()) {
        fmt::print("{}: mean over a cycle of {} steps: {} per step ({:.2f}x), {} sent per rank\n",
                   result["method"].get<std::string>(), cycle["steps"].get<std::uint64_t>(),
                   show_seconds(cycle["seconds"].get<double>()), cycle["speedup"].get<double>(),
                   show_bytes(cycle["bytes_sent"].get<double>()));
      }
      if (result.contains("statistics") && result["statistics"].contains("nested_fraction")) {
        fmt::print("{}: {:.1f} % of the nested ranks' elements were sent in nested codes\n",
                   result["method"].get<std::string>(),
                   100 * result["statistics"]["nested_fraction"].get<double>());
      }
      const bool has_link = transport_->size() > 1;
      if (has_link && compresses && result["method"] != "fp32" &&
          result["speedup"].get<double>() < 0.95) {
        fmt::print("{} is slower than fp32 on this link.\n", result["method"].get<std::string>());
      }
    }
  }

  const BenchReduceOptions& options_;
  std::shared_ptr<Transport> transport_;
  SimulatedTransport* simulated_;  // null in real time
  std::vector<float> values_;
  BucketLayout layout_;
  std::vector<float> second_moment_;  // for methods that read one
  bool quiet_;
  double fp32_seconds_ = 0;
  double bf16_seconds_ = 0;
  std::uint64_t chain_ = 0;  // longest chain of messages to this rank in the last timed work
  std::optional<double> reference_seconds_;
};

}  // namespace

int bench_reduce(const BenchReduceOptions& options) {
  return launch(options.launch, [&](std::shared_ptr<Transport> transport) {
    RankBench(options, std::move(transport)).run();
  });
}

}  // namespace thinreduce::apps

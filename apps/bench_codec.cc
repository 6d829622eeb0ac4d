// `thinreduce bench codec`: measures how fast one rank encodes and decodes, against memcpy of the
// same bytes in the same run. A world of one rank runs the method through the real engine, whose
// stage times are the times of the codec.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/commands.h"
#include "apps/distortion.h"
#include "apps/resnet_layout.h"
#include "apps/synthetic.h"
#include "apps/terminal.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::apps {
namespace {

// Copies `source` to `target` and returns the speed in GB/s.
double memcpy_speed(const std::vector<float>& source, std::vector<float>& target) {
  const auto start = Clock::now();
  std::memcpy(target.data(), source.data(), source.size() * sizeof(float));
  const double seconds = Seconds(Clock::now() - start).count();
  return static_cast<double>(source.size() * sizeof(float)) / seconds / 1e9;
}

// Returns GB/s, or null for a stage in which the method has no work (fp32 has nothing to encode).
nlohmann::ordered_json speed(double bytes, const std::vector<double>& seconds) {
  const double typical = median(seconds);
  if (typical < 1e-6) return nullptr;
  return bytes / typical / 1e9;
}

nlohmann::ordered_json measure(const std::string& text, const BenchCodecOptions& options) {
  const Spec spec = Spec::parse(text);
  std::vector<float> gradient(options.floats);
  std::vector<float> values(options.floats);
  synthetic_gradient({}, gradient);
  std::vector<float> second_moment(spec.info->second_moment ? options.floats : 0);
  synthetic_second_moment(second_moment);
  auto ranks = connect_threads(1);
  Session session(std::move(ranks[0]), {.spec = text,
                                        .check_replicas_every = 0,
                                        .threads = options.threads,
                                        .momentum_inside_ok = true});
  const auto bucket = session.add_bucket(bench_layout(options.shapes, options.floats));

  const auto uncompressed = static_cast<int>(spec.info->cycle(spec.options).start);
  const int warmup = options.warmup >= 0 ? options.warmup : uncompressed + 1;
  const int steps = std::max(warmup + options.steps, uncompressed + 1);
  Progress progress(spec.full_text(), static_cast<std::size_t>(steps), options.json);
  std::vector<double> encode;
  std::vector<double> decode;
  std::vector<double> copies;
  double nmse = 0;
  std::uint64_t wire_bytes = 0;
  // The first compressed step starts without a residual and gives the error. It also touches memory
  // for the first time, so the speed comes from the steps after the warm-up.
  for (int step = 0; step < steps; ++step) {
    // A method that learns from uncompressed steps must be measured on a gradient it has not seen.
    if (step > 0 && step <= uncompressed) {
      synthetic_gradient({0, static_cast<std::uint64_t>(step)}, gradient);
    }
    const double copied = memcpy_speed(gradient, values);
    const Report report = session.submit(bucket, values, second_moment).get();
    if (step == uncompressed) nmse = normalised_error(values, gradient);
    if (step >= warmup) {
      copies.push_back(copied);
      encode.push_back(report.stages.encode);
      decode.push_back(report.stages.decode);
    }
    wire_bytes = report.payload_bytes;
    progress.advance();
  }
  const auto bytes = static_cast<double>(options.floats * sizeof(float));
  nlohmann::ordered_json result{
      {"method", spec.full_text()},
      {"floats", options.floats},
      {"shapes", options.shapes},
      {"wire_bytes", wire_bytes},
      {"ratio", wire_bytes > 0 ? bytes / static_cast<double>(wire_bytes) : 0},
      {"encode_gbps", speed(bytes, encode)},
      {"decode_gbps", speed(bytes, decode)},
      {"memcpy_gbps", median(copies)},
      {"nmse", nmse},
      {"threads", options.threads},
      {"simd", kernels::active_target()}};
  // The speeds above count the gradient alone; this one also counts the second moment.
  if (spec.info->second_moment) result["encode_input_gbps"] = speed(2 * bytes, encode);
  return result;
}

std::string show_speed(const nlohmann::ordered_json& result, const char* key) {
  if (result[key].is_null()) return "-";
  const double gbps = result[key];
  return fmt::format("{:.2f} ({:.2f})", gbps, gbps / result["memcpy_gbps"].get<double>());
}

}  // namespace

int bench_codec(const BenchCodecOptions& options) {
  auto results = nlohmann::ordered_json::array();
  std::string heading =
      fmt::format("{} floats, {}, {} thread{}", options.floats, describe_shapes(options.shapes),
                  options.threads, options.threads == 1 ? "" : "s");
  if (options.gradients.empty()) {
    for (const auto& spec : options.specs) results.push_back(measure(spec, options));
  } else {
    const RecordedGradients recorded(options.gradients);
    heading = fmt::format(
        "{} floats from {}, {} steps of {} ranks; wire and nmse are means over the second half of "
        "them",
        recorded.elements(), options.gradients.string(), recorded.steps().size(), recorded.ranks());
    for (const auto& spec : options.specs) {
      results.push_back(bench_gradients(recorded, spec, options.threads, options.json));
    }
  }
  if (options.json) {
    fmt::print("{}\n", (results.size() == 1 ? results[0] : results).dump(2));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{
      {"method", "wire", "ratio", "encode GB/s", "decode GB/s", "memcpy", "nmse"}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    // The spec as given, since the full text would not fit on the line.
    rows.push_back({options.specs[i], show_bytes(result["wire_bytes"].get<double>()),
                    fmt::format("{:.1f}x", result["ratio"].get<double>()),
                    show_speed(result, "encode_gbps"), show_speed(result, "decode_gbps"),
                    fmt::format("{:.2f}", result["memcpy_gbps"].get<double>()),
                    fmt::format("{:.3g}", result["nmse"].get<double>())});
  }
  fmt::print("{}; kernels {}; in brackets: speed relative to memcpy\n\n{}", heading,
             kernels::active_target(), table(rows));
  if (options.gradients.empty()) fmt::print("{}", notes_on_synthetic(options.specs));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto warmup = results[i].value("measured_in_warmup", std::uint64_t{0});
    if (warmup == 0) continue;
    fmt::print(
        "{}: {} of the {} measured steps are uncompressed, because the method is still in "
        "its warm-up; record more steps\n",
        options.specs[i], warmup, results[i]["measured_steps"].get<std::uint64_t>());
  }
  return 0;
}

}  // namespace thinreduce::apps

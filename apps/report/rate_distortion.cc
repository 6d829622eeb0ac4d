#include "apps/report/rate_distortion.h"

#include <fmt/format.h>

#include "apps/report/json_file.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {

std::vector<CodecResult> read_codec_results(const std::filesystem::path& file) {
  nlohmann::json json = read_json(file);
  if (json.is_object()) json = nlohmann::json::array({json});
  if (!json.is_array() || json.empty()) {
    throw Error(ErrorCode::bad_state,
                fmt::format("{} has no results; write it with `thinreduce bench codec --json`",
                            file.string()));
  }
  std::vector<CodecResult> results;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonObject entry(json[i], fmt::format("{}: result {}", file.string(), i + 1));
    for (const char* key : {"method", "ratio", "nmse"}) entry.require(key);
    const double ratio = entry.number("ratio");
    const double nmse = entry.number("nmse");
    if (!(ratio > 0)) entry.fail(fmt::format("\"ratio\" must be above 0, but is {}", ratio));
    if (!(nmse >= 0)) entry.fail(fmt::format("\"nmse\" must be 0 or more, but is {}", nmse));
    results.push_back({.method = entry.text("method"),
                       .bits = 32 / ratio,
                       .nmse = nmse,
                       .warmup = entry.number("measured_in_warmup") > 0});
  }
  return results;
}

}  // namespace thinreduce::apps

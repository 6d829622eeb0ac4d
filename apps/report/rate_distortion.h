// Results of `thinreduce bench codec --json`: the error over the bits per element.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace thinreduce::apps {

struct CodecResult {
  std::string method;   // spec with all options
  double bits = 0;      // per element on the wire
  double nmse = 0;      // squared error divided by squared gradient
  bool warmup = false;  // whether some measured steps were uncompressed
};

// Reads one object or an array of objects. Throws Error that names the file and the problem.
[[nodiscard]] std::vector<CodecResult> read_codec_results(const std::filesystem::path& file);

}  // namespace thinreduce::apps

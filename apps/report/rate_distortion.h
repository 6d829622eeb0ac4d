// What `thinreduce bench codec --json` found: bits for an element against the error.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace thinreduce::apps {

struct CodecResult {
  std::string method;  // the spec with every option
  double bits = 0;     // for an element, on the wire
  double nmse = 0;     // squared error over squared gradient
};

// One object or an array of them. Throws Error naming the file and what is wrong with it.
[[nodiscard]] std::vector<CodecResult> read_codec_results(const std::filesystem::path& file);

}  // namespace thinreduce::apps

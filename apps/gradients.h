// Recorded gradients: what each rank computed in some steps of a training, before the exchange.
// docs/run-folder.md describes the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce::apps {

// Bucket layouts as JSON, as config.json and gradients.json have them, and back.
[[nodiscard]] nlohmann::ordered_json layouts_to_json(const std::vector<BucketLayout>& layouts);
[[nodiscard]] std::vector<BucketLayout> layouts_from_json(const nlohmann::json& json,
                                                          const std::string& what);

struct RecordingOptions {
  std::filesystem::path folder;
  std::string model;
  std::string data;
  int ranks = 1;
  std::vector<BucketLayout> layouts;
};

// One rank's side of recording.
class GradientWriter {
 public:
  GradientWriter(RecordingOptions options, int rank);
  void write(std::uint64_t step, const BucketLayout& layout, std::span<const float> values) const;
  // Rank 0, when all ranks have written all buckets of a step: the step now exists.
  void add_step(std::uint64_t step);

 private:
  RecordingOptions options_;
  int rank_;
  nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
};

// Reads a folder that nobody vouches for. Everything throws Error{bad_input} or Error{unavailable}
// that names the file.
class RecordedGradients {
 public:
  explicit RecordedGradients(std::filesystem::path folder);

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<BucketLayout>& layouts() const { return layouts_; }
  [[nodiscard]] const std::vector<std::uint64_t>& steps() const { return steps_; }
  [[nodiscard]] std::size_t elements() const;
  // One bucket of one rank in one of the steps; `values` has the bucket's size.
  void read(std::uint64_t step, int rank, const BucketLayout& layout,
            std::span<float> values) const;

 private:
  std::filesystem::path folder_;
  int ranks_ = 0;
  std::vector<BucketLayout> layouts_;
  std::vector<std::uint64_t> steps_;
};

}  // namespace thinreduce::apps

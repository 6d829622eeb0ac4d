// Recorded gradients: those that each rank computed in some steps of a training, before the reduce.
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

// Convert bucket layouts to the JSON of config.json and gradients.json, and back. The second throws
// Error{bad_input}, in which `what` names the file.
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

// Writes the gradients of one rank.
class GradientWriter {
 public:
  GradientWriter(RecordingOptions options, int rank);
  void write(std::uint64_t step, const BucketLayout& layout, std::span<const float> values) const;
  // Lists a step in gradients.json, on rank 0. All ranks must have written all of its buckets.
  void add_step(std::uint64_t step);

 private:
  RecordingOptions options_;
  int rank_;
  nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
};

// Reads an untrusted folder. Every function throws Error{bad_input} or Error{unavailable} that
// names the file.
class RecordedGradients {
 public:
  explicit RecordedGradients(std::filesystem::path folder);

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<BucketLayout>& layouts() const { return layouts_; }
  [[nodiscard]] const std::vector<std::uint64_t>& steps() const { return steps_; }
  [[nodiscard]] std::size_t elements() const;
  // Reads one bucket of one rank. `values` must have the size of the bucket.
  void read(std::uint64_t step, int rank, const BucketLayout& layout,
            std::span<float> values) const;

 private:
  std::filesystem::path folder_;
  int ranks_ = 0;
  std::vector<BucketLayout> layouts_;
  std::vector<std::uint64_t> steps_;
};

}  // namespace thinreduce::apps

// Reads and writes the run folder that docs/run-folder.md describes. Only rank 0 writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "apps/train/options.h"

namespace thinreduce::train {

// Version of the JSON files.
inline constexpr int kRunFormat = 1;

class RunFolder {
 public:
  // Creates the folder, or removes the old run from it when `overwrite` allows that. Checks that
  // `bytes` can be written to it. Throws Error{unavailable}.
  static RunFolder create(const TrainOptions& options, std::uint64_t bytes);
  // Returns an existing folder, which stays as it is until continue_after().
  static RunFolder resume(const std::filesystem::path& path);
  // Removes the summary and the lines after `step`, and opens the files for more lines.
  void continue_after(std::uint64_t step);
  // Throws Error{unavailable} if `create` would refuse the folder because it holds a run.
  static void check_unused(const TrainOptions& options);
  // Returns the seconds of every step that is in the folder.
  [[nodiscard]] std::vector<double> step_seconds() const;
  // Returns the mean of each of the method's statistics over the steps in the folder that have it.
  [[nodiscard]] std::map<std::string, double> mean_statistics() const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write_config(const Json& config) const;
  void add_step(const Json& line);
  void add_evaluation(const Json& line);
  // Writes buffered lines to the files. Throws Error{unavailable} when that fails.
  void flush();
  void write_summary(const Json& summary) const;

 private:
  explicit RunFolder(std::filesystem::path path);
  template <typename Visit>
  void for_steps(const Visit& visit) const;
  void open();

  std::filesystem::path path_;
  std::ofstream steps_;
  std::ofstream evaluations_;
};

inline constexpr double kNoAccuracy = -1;

// Contents of checkpoint.json.
struct Checkpoint {
  std::uint64_t step = 0;
  double seconds = 0;
  std::uint64_t bytes_sent_total = 0;
  std::uint64_t payload_total = 0;
  std::uint64_t evaluated = 0;    // step of the last evaluation; 0: none so far
  double accuracy = kNoAccuracy;  // of the last evaluation
  double best_accuracy = kNoAccuracy;
  double loss = 0;
  std::uint64_t model_checksum = 0;

  [[nodiscard]] std::string folder() const;
};
void write_checkpoint(const std::filesystem::path& run, const Checkpoint& checkpoint);
// Throws Error{unavailable} when it is missing, Error{bad_state} when it is damaged.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& run);
// Removes all checkpoint folders of the run except the newest.
void remove_old_checkpoints(const std::filesystem::path& run, const Checkpoint& newest);

// Reads the settings of a run that is to be resumed into `options`, with its ranks, transport and
// link.
void read_config(const std::filesystem::path& run, TrainOptions& options);

}  // namespace thinreduce::train

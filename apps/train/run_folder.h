// The run folder as docs/run-folder.md describes it; only rank 0 writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "apps/train/options.h"

namespace thinreduce::train {

// Of the JSON files; docs/run-folder.md.
inline constexpr int kRunFormat = 1;

class RunFolder {
 public:
  // A new folder, or one that `overwrite` allows to be emptied of its old run. Makes sure that it
  // can be written and has room for `bytes`. Throws Error{unavailable}.
  static RunFolder create(const TrainOptions& options, std::uint64_t bytes);
  // An existing one, cut back to what was known after `step`.
  static RunFolder resume(const std::filesystem::path& path, std::uint64_t step);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write_config(const Json& config) const;
  void add_step(const Json& line);
  void add_evaluation(const Json& line);
  // What was added is on disk.
  void flush();
  void write_summary(const Json& summary) const;

 private:
  explicit RunFolder(std::filesystem::path path);
  void open();

  std::filesystem::path path_;
  std::ofstream steps_;
  std::ofstream evaluations_;
};

// Where a run stands: what checkpoint.json holds.
struct Checkpoint {
  std::uint64_t step = 0;
  double seconds = 0;
  std::uint64_t bytes_sent_total = 0;
  std::uint64_t payload_total = 0;
  double accuracy = -1;  // of the last evaluation; below 0: none yet
  double best_accuracy = -1;
  double loss = 0;
  std::uint64_t model_checksum = 0;

  [[nodiscard]] std::string folder() const;
};
void write_checkpoint(const std::filesystem::path& run, const Checkpoint& checkpoint);
// Throws Error{unavailable} when there is none, Error{bad_state} when it is damaged.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& run);
// Removes all but the named one, and nothing else.
void remove_old_checkpoints(const std::filesystem::path& run, const Checkpoint& newest);

// The settings of a run that is to be resumed, into `options`.
void read_config(const std::filesystem::path& run, TrainOptions& options);

}  // namespace thinreduce::train

// What people see: aligned tables on standard output, a progress line on standard error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thinreduce::apps {

// First column to the left, the others to the right; the first row is the heading.
[[nodiscard]] std::string table(const std::vector<std::vector<std::string>>& rows);

// Breaks `text` into lines of at most 100 columns, each indented and ended by a newline.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent);

// A line that rewrites itself. Silent when standard error is not a terminal or `quiet` is set.
class Progress {
 public:
  Progress(std::string label, std::size_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::string_view note = "");
  // The first so many are done already.
  void skip(std::size_t done) { done_ = done; }
  // Whether there is anybody to see it.
  [[nodiscard]] bool shown() const { return shown_; }

 private:
  void clear() const;

  std::string label_;
  std::size_t total_;
  std::size_t done_ = 0;
  bool shown_;
};

// 0.001234 -> "1.23 ms"
[[nodiscard]] std::string show_seconds(double seconds);
// 1234567 -> "1.23 MB"
[[nodiscard]] std::string show_bytes(double bytes);

[[nodiscard]] double median(std::vector<double> values);

}  // namespace thinreduce::apps

// Text for terminals: aligned tables, wrapped paragraphs, a progress line, numbers with units.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thinreduce::apps {

// Aligns the first column left and the others right; the first row is the heading.
[[nodiscard]] std::string table(const std::vector<std::vector<std::string>>& rows);

// Width of help texts and lists.
inline constexpr std::size_t kColumns = 100;

// Breaks `text` into lines of at most `columns`, each indented and ended by a newline.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent,
                                  std::size_t columns = kColumns);

// A progress line on standard error that rewrites itself. It prints nothing when standard error is
// not a terminal or `quiet` is set.
class Progress {
 public:
  Progress(std::string label, std::size_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::string_view note = "");
  // Starts from `done` instead of 0.
  void skip(std::size_t done) { done_ = done; }
  // Returns whether the line is printed.
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

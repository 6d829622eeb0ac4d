#include "apps/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>

namespace thinreduce::apps {
namespace {

// Counts characters, not bytes: "µs" has two.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::string padding(widths[i] - width(rows[r][i]), ' ');
      line += i == 0 ? rows[r][i] + padding : "  " + padding + rows[r][i];
    }
    text += line + "\n";
    if (r == 0) {
      std::size_t total = 0;
      for (std::size_t i = 0; i < widths.size(); ++i) total += widths[i] + (i == 0 ? 0 : 2);
      text += std::string(total, '-') + "\n";
    }
  }
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  const std::string margin(indent, ' ');
  std::string lines;
  std::string line;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + width(line) + 1 + width(word) > columns) {
      lines += margin + std::exchange(line, "") + "\n";
    }
    line += line.empty() ? word : " " + word;
  }
  return line.empty() ? lines : lines + margin + line + "\n";
}

Progress::Progress(std::string label, std::size_t total, bool quiet)
    : label_(std::move(label)), total_(total), shown_(!quiet && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::clear() const {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void Progress::advance(std::string_view note) {
  ++done_;
  if (!shown_) return;
  constexpr std::size_t kBar = 20;
  const std::size_t filled = std::min(kBar, kBar * done_ / std::max<std::size_t>(1, total_));
  fmt::print(stderr, "\r\033[K[{}{}] {}/{} {} {}", std::string(filled, '#'),
             std::string(kBar - filled, '.'), done_, total_, label_, note);
  std::fflush(stderr);
}

std::string show_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.0f} µs", seconds * 1e6);
}

std::string show_bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.2f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.2f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace thinreduce::apps

// Runs of `thinreduce train` in a folder of their own, for tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/processes.h"

namespace thinreduce::testing_support {

namespace fs = std::filesystem;

inline std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline nlohmann::json json_of(const fs::path& file) {
  return nlohmann::json::parse(text_of(file));
}

inline std::vector<nlohmann::json> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class TrainTest : public testing::Test {
 protected:
  TrainTest() { fs::create_directories(folder); }
  ~TrainTest() override { fs::remove_all(folder); }

  [[nodiscard]] std::vector<std::string> command(const std::string& out,
                                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words{
        THINREDUCE_PROGRAM,   "train", "--model", "fc-300-100", "--out", folder / out, "--json",
        "--evaluate-samples", "100"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  [[nodiscard]] Finished resume(const std::string& out,
                                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{THINREDUCE_PROGRAM, "train", "--resume", folder / out, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  // Returns the losses of all steps as text.
  [[nodiscard]] std::string losses(const std::string& out) const {
    std::string text;
    std::uint64_t expected = 1;
    for (const auto& line : lines_of(folder / out / "steps.jsonl")) {
      EXPECT_EQ(line["step"], expected++);
      text += line["loss"].dump() + " ";
    }
    return text;
  }
  // Returns the losses of all steps and of the last evaluation as text.
  [[nodiscard]] std::string result(const std::string& out) const {
    return losses(out) + lines_of(folder / out / "evaluations.jsonl").back()["loss"].dump();
  }

  fs::path folder = fs::path(testing::TempDir()) / fmt::format("train-{}", ::getpid());
};

}  // namespace thinreduce::testing_support

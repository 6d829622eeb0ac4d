// Run folders as the report reads them: complete, begun, cut off and damaged.
#include "apps/report/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>

#include "apps/report/summary.h"
#include "tests/complaint.h"
#include "tests/synthetic_runs.h"
#include "tests/temporary_folder.h"

namespace thinreduce::apps::run_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::read_file;
using testing_support::SyntheticRun;
using testing_support::write_file;
using testing_support::write_run;

TEST(ReadRun, TakesTheSummaryWhenThereIsOne) {
  const Folder folder;
  const RunRecord run =
      read_run(write_run(folder / "a", {.method = "bf16", .ratio = 2, .steps = 100}));
  EXPECT_EQ(run.status, "finished");
  EXPECT_EQ(run.config.method_name, "bf16");
  EXPECT_EQ(run.config.ranks, 4);
  EXPECT_EQ(run.steps.size(), 100U);
  EXPECT_EQ(run.evaluations.size(), 20U);
  EXPECT_EQ(run.ratio, 2);
  EXPECT_EQ(run.identical, true);
  EXPECT_EQ(run.accuracy, run.evaluations.back().accuracy);
}

TEST(ReadRun, SumsUpWhatIsThereWhenThereIsNone) {
  const Folder folder;
  const SyntheticRun whole{.method = "bf16", .ratio = 2, .steps = 100};
  const RunRecord finished = read_run(write_run(folder / "a", whole));
  fs::remove(folder / "a" / "summary.json");
  const RunRecord cut = read_run(folder / "a");
  EXPECT_EQ(cut.status, "incomplete");
  EXPECT_FALSE(cut.identical.has_value());
  EXPECT_EQ(cut.accuracy, finished.accuracy);
  EXPECT_EQ(cut.steps_done, 100);
  EXPECT_NEAR(cut.seconds, finished.seconds, 1e-9);
  EXPECT_NEAR(cut.bytes_sent, finished.bytes_sent, 1);
  EXPECT_NEAR(cut.ratio, finished.ratio, 1e-9);
  EXPECT_NEAR(cut.step_seconds, finished.step_seconds, 0.1 * finished.step_seconds);
}

TEST(ReadRun, StandsARunThatHasOnlyBegun) {
  const Folder folder;
  write_run(folder / "a", {.status = ""});
  fs::remove(folder / "a" / "steps.jsonl");
  fs::remove(folder / "a" / "evaluations.jsonl");
  const RunRecord run = read_run(folder / "a");
  EXPECT_EQ(run.status, "incomplete");
  EXPECT_EQ(run.steps_done, 0);
  EXPECT_TRUE(std::isnan(run.accuracy));
  const auto rows = summarise({run});
  EXPECT_THAT(to_cells(rows)[1], ElementsAre("fp32", "–", "reference", "–", "–", "1.00×", "–",
                                             "1.0×", "–", "–", "incomplete, 0 of 468 steps"));
}

TEST(ReadRun, LeavesOutALastLineThatWasCut) {
  const Folder folder;
  write_run(folder / "a", {.steps = 10, .status = ""});
  const fs::path file = folder / "a" / "steps.jsonl";
  const std::string text = read_file(file);
  // All complete lines count, wherever the last one is cut.
  for (std::size_t size = text.rfind('\n', text.size() - 2) + 1; size < text.size() - 1;
       size += 7) {
    write_file(file, text.substr(0, size));
    ASSERT_EQ(read_run(folder / "a").steps.size(), 9U) << size;
  }
  write_file(file, text.substr(0, text.size() - 1));
  EXPECT_EQ(read_run(folder / "a").steps.size(), 10U);
}

TEST(ReadRun, NamesTheFileAndTheLineOfDamage) {
  const Folder folder;
  write_run(folder / "a", {.steps = 10});
  const fs::path file = folder / "a" / "steps.jsonl";
  const std::string text = read_file(file);
  const std::size_t third = text.find('\n', text.find('\n') + 1) + 1;
  const auto with = [&](const std::string& line) {
    write_file(file, text.substr(0, third) + line + text.substr(text.find('\n', third)));
    return complaint([&] { return read_run(folder / "a"); });
  };
  EXPECT_THAT(with(R"({"step": 3, "lo)"), HasSubstr("a/steps.jsonl:3: invalid JSON"));
  EXPECT_THAT(with(""), HasSubstr("a/steps.jsonl:3: invalid JSON"));
  EXPECT_THAT(with("\xff\xfe"), HasSubstr("a/steps.jsonl:3: invalid JSON"));
  EXPECT_THAT(with("17"), HasSubstr("a/steps.jsonl:3: must be an object, but is number"));
  EXPECT_THAT(with(R"({"loss": 1})"), HasSubstr("a/steps.jsonl:3: \"step\" is missing"));
  EXPECT_THAT(with(R"({"step": 3, "loss": "low"})"),
              HasSubstr("a/steps.jsonl:3: \"loss\" must be a number, but is string"));
  EXPECT_THAT(with(R"({"step": 3, "stages": {"wire": []}})"),
              HasSubstr("steps.jsonl:3 \"stages\": \"wire\" must be a number, but is array"));
  EXPECT_EQ(with(R"({"step": 3, "loss": null, "later": "unknown"})"), "(nothing)");
  // A copy of such a value would overflow the stack.
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += R"({"a":)";
  EXPECT_THAT(with(R"({"step": 3, "stages": )" + deep), HasSubstr("nested more than 32 deep"));
  EXPECT_EQ(with(R"({"step": 3, "later": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"["})"), "(nothing)");
}

TEST(ReadRun, RefusesWhatIsNoRun) {
  const Folder folder;
  const auto reading = [&] { return complaint([&] { return read_run(folder / "a"); }); };
  EXPECT_THAT(reading(), HasSubstr("is not a folder"));
  fs::create_directories(folder / "a");
  EXPECT_THAT(reading(), HasSubstr("is not a run folder: it has no config.json"));
  write_file(folder / "a" / "config.json", "{");
  EXPECT_THAT(reading(), HasSubstr("config.json: invalid JSON"));
  write_file(folder / "a" / "config.json", "{}");
  EXPECT_THAT(reading(), HasSubstr("config.json: \"method\" is missing"));
  write_file(folder / "a" / "config.json", R"({"format": 2, "method": "fp32"})");
  EXPECT_THAT(reading(), HasSubstr("newer thinreduce"));
  write_file(folder / "a" / "config.json", R"({"format": 1, "method": "fp32"})");
  EXPECT_EQ(reading(), "(nothing)");
  write_file(folder / "a" / "summary.json", R"({"status": "finished", "identical": 1})");
  EXPECT_THAT(reading(), HasSubstr("\"identical\" must be true or false"));
}

TEST(Runs, ATimeOfZeroComesFromTheSteps) {
  const Folder folder;
  const fs::path path = write_run(folder / "a", {});
  const double before = read_run(path).step_seconds;
  auto summary = nlohmann::json::parse(read_file(path / "summary.json"));
  summary["step_seconds"] = 0;
  write_file(path / "summary.json", summary.dump());
  EXPECT_NEAR(read_run(path).step_seconds, before, 0.2 * before);
}

}  // namespace
}  // namespace thinreduce::apps::run_test

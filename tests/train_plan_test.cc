// `thinreduce plan --model`: a plan for the gradients that the trainer computes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/train_runs.h"

namespace thinreduce::train_plan_test {
namespace {

using namespace testing_support;

class PlanModel : public TrainTest {
 protected:
  // Runs `thinreduce plan` with temporary files in a folder of this test.
  [[nodiscard]] Finished plan(const std::vector<std::string>& more,
                              std::map<std::string, std::string> environment = {}) const {
    fs::create_directories(temporary);
    environment["TMPDIR"] = temporary.string();
    std::vector<std::string> words{THINREDUCE_PROGRAM, "plan",       "--model", "gpt",
                                   "--link",           "10mbit,1ms", "--ranks", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, environment);
  }

  fs::path temporary = folder / "tmp";
};

TEST_F(PlanModel, HasTheBucketsOfTheTraining) {
  const Finished end = plan({"--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto made = nlohmann::json::parse(end.out);
  EXPECT_EQ(made["model"], "gpt");
  EXPECT_EQ(made["ranks"], 2);
  EXPECT_TRUE(fs::is_empty(temporary)) << "the gradients were not deleted";

  const fs::path recorded = folder / "gradients";
  const Finished training =
      run({THINREDUCE_PROGRAM, "train", "--model", "gpt", "--ranks", "2", "--save-gradients",
           recorded, "--save-every", "1", "--record-only", "--stop-after", "2"});
  ASSERT_EQ(training.code, 0) << training.err;
  const auto manifest = json_of(recorded / "gradients.json");
  EXPECT_EQ(manifest["records"].size(), 2 * 2 * manifest["buckets"].size());
  ASSERT_EQ(made["buckets"].size(), manifest["buckets"].size());
  for (std::size_t i = 0; i < manifest["buckets"].size(); ++i) {
    std::size_t compressible = 0;
    for (const auto& tensor : manifest["buckets"][i]["tensors"]) {
      std::size_t elements = 1;
      for (const std::size_t extent : tensor["shape"]) elements *= extent;
      if (tensor["shape"].size() > 1 && elements >= 1024) compressible += elements;
    }
    const auto& bucket = made["buckets"][i];
    EXPECT_EQ(bucket["id"], manifest["buckets"][i]["id"]);
    EXPECT_EQ(bucket["elements"], compressible);
    EXPECT_NE(bucket["spec"], "fp32") << end.out;
    EXPECT_GT(bucket["candidates"][1]["error"], 0) << end.out;
  }
}

TEST_F(PlanModel, NamesItsGradients) {
  const Finished end = plan({});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("gradients of the first 2 steps of gpt on 2 ranks"), std::string::npos)
      << end.out;
}

TEST_F(PlanModel, DataThatCantBeHadAreExplained) {
  std::ofstream(folder / "file") << "not a folder";
  const Finished end = plan({"--data-dir", folder / "file" / "data"});
  EXPECT_EQ(end.code, 1);
  for (const char* part : {"can't create the folder", "could not compute gradients of --model gpt",
                           "--gradients DIR", "--floats N"}) {
    EXPECT_NE(end.err.find(part), std::string::npos) << end.err;
  }
  EXPECT_TRUE(fs::is_empty(temporary));
}

TEST_F(PlanModel, AMissingTrainerIsExplained) {
  const fs::path alone = folder / "thinreduce";
  fs::copy_file(THINREDUCE_PROGRAM, alone);
  const Finished end = run({alone, "plan", "--model", "gpt", "--link", "10mbit,1ms"});
  EXPECT_EQ(end.code, 1);
  for (const char* part : {"can't start", "libtorch-dev", "--gradients DIR", "--floats N"}) {
    EXPECT_NE(end.err.find(part), std::string::npos) << end.err;
  }
}

}  // namespace
}  // namespace thinreduce::train_plan_test

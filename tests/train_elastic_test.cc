// `thinreduce train --elastic`: ranks are killed, added and sent away while the training goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/train_runs.h"

namespace thinreduce::train_elastic_test {
namespace {

using namespace testing_support;

class TrainElastic : public TrainTest {
 protected:
  static constexpr auto kLongest = std::chrono::seconds(200);

  // Starts a run that ends only when it is stopped.
  [[nodiscard]] Process start(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"--elastic",         "--steps",       "1000000", "--method",
                                   "topk:density=0.05", "--check-every", "10"};
    words.insert(words.end(), more.begin(), more.end());
    return {command("a", words), {}};
  }

  // Returns the processes of all ranks in the order of their start.
  static std::vector<pid_t> ranks_of(const Process& launcher) {
    std::ifstream in(fmt::format("/proc/{0}/task/{0}/children", launcher.pid()));
    std::vector<pid_t> ranks;
    for (pid_t rank = 0; in >> rank;) ranks.push_back(rank);
    return ranks;
  }

  static void wait_until(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kLongest;
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the run does not go on";
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  // Waits until the world has `ranks` ranks and has trained some steps.
  void wait_for(int ranks, std::size_t more = 20) const {
    const auto world = [&] {
      const auto config = nlohmann::json::parse(text_of(folder / "a" / "config.json"), nullptr,
                                                /*allow_exceptions=*/false);
      return config.is_object() ? config["ranks"].get<int>() : 0;
    };
    wait_until([&] { return fs::exists(folder / "a" / "config.json") && world() == ranks; });
    const std::size_t before = steps();
    wait_until([&] { return steps() > before + more; });
  }
  [[nodiscard]] std::size_t steps() const {
    const std::string text = text_of(folder / "a" / "steps.jsonl");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  // Stops the run and returns its summary.
  nlohmann::json stop(Process& launcher) const {
    for (const pid_t rank : ranks_of(launcher)) ::kill(rank, SIGINT);
    const Finished end = launcher.finish();
    EXPECT_EQ(end.code, 1) << end.err;
    const auto summary = json_of(folder / "a" / "summary.json");
    EXPECT_EQ(summary["status"], "interrupted");
    return summary;
  }

  static bool has(const nlohmann::json& summary, const std::string& text) {
    for (const auto& change : summary["changes"]) {
      if (change["text"].get<std::string>().find(text) != std::string::npos) return true;
    }
    return false;
  }
};

TEST_F(TrainElastic, GoesOnWithoutARankThatWasKilledAndTakesInANewOne) {
  Process launcher = start({"--ranks", "3"});
  wait_for(3);
  ::kill(ranks_of(launcher)[1], SIGKILL);
  wait_for(2);
  wait_for(3);
  const auto summary = stop(launcher);
  EXPECT_TRUE(has(summary, "; old rank 1 lost, with all gradient that was not sent yet"));
  EXPECT_TRUE(has(summary, "; new rank 2 joined"));
  for (const auto& change : summary["changes"]) {
    fmt::print("{:.3f} s: {}\n", change["seconds"].get<double>(),
               change["text"].get<std::string>());
  }
}

TEST_F(TrainElastic, GoesOnWithoutTheRankThatWritesTheRunFolder) {
  Process launcher = start({"--ranks", "2"});
  wait_for(2);
  ::kill(ranks_of(launcher)[0], SIGKILL);
  wait_for(1);
  wait_for(2);
  EXPECT_TRUE(has(stop(launcher), "; old rank 0 lost"));
}

TEST_F(TrainElastic, RanksAreAddedAndLeave) {
  Process launcher = start({"--ranks", "2"});
  wait_for(2);
  launcher.kill(SIGUSR1);
  wait_for(3);
  ::kill(ranks_of(launcher)[1], SIGTERM);
  wait_for(2);
  EXPECT_TRUE(
      has(stop(launcher), "; old rank 1 left and handed over the gradient that was not sent yet"));
}

TEST_F(TrainElastic, RanksThatAllLeaveInOneStepSaveTheRun) {
  // Steps of a quarter of a second, so that all ranks are told in the same one.
  Process launcher = start({"--ranks", "3", "--link", "1gbit,50ms"});
  wait_for(3, 4);
  for (const pid_t rank : ranks_of(launcher)) ::kill(rank, SIGTERM);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_EQ(json_of(folder / "a" / "summary.json")["status"], "interrupted");
  EXPECT_TRUE(fs::exists(folder / "a" / "checkpoint.json"));
}

// As a scheduler ends a job.
TEST_F(TrainElastic, ALauncherThatGetsSigtermLetsItsRanksSave) {
  Process launcher = start({"--ranks", "2"});
  wait_for(2);
  launcher.kill(SIGTERM);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.code, 1) << end.err;
  const auto summary = json_of(folder / "a" / "summary.json");
  EXPECT_EQ(summary["status"], "interrupted");
  EXPECT_TRUE(fs::exists(folder / "a" / "checkpoint.json"));
}

TEST_F(TrainElastic, RefusesOptionsThatItCannotHave) {
  const Finished local = run(command("a", {"--elastic", "--local-steps", "4"}));
  EXPECT_EQ(local.code, 2);
  EXPECT_NE(local.err.find("--elastic can't be used with --local-steps"), std::string::npos);
  const Finished threads = run(command("a", {"--elastic", "--transport", "threads"}));
  EXPECT_EQ(threads.code, 2);
  EXPECT_NE(threads.err.find("--elastic starts ranks over gloo"), std::string::npos);
}

// The guard of the command line, with a factor that every step exceeds on some rank.
TEST_F(TrainElastic, TheGuardNamesARank) {
  const std::vector<std::string> words{"--ranks", "3", "--steps", "3", "--guard-factor", "1.0001"};
  auto refusing = words;
  refusing.insert(refusing.end(), {"--guard", "refuse"});
  const Finished refused = run(command("b", refusing));
  EXPECT_EQ(refused.code, 1) << refused.err;  // the run failed; its arguments were right
  EXPECT_NE(refused.err.find("times the median"), std::string::npos) << refused.err;
  auto reporting = words;
  reporting.insert(reporting.end(), {"--guard", "report"});
  const Finished reported = run(command("c", reporting));
  EXPECT_EQ(reported.code, 0) << reported.err;
  EXPECT_NE(reported.err.find("times the median norm"), std::string::npos) << reported.err;
}

}  // namespace
}  // namespace thinreduce::train_elastic_test

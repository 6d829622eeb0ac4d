// Runs of `thinreduce train` that are stopped, interrupted or killed, and go on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/train_runs.h"

namespace thinreduce::train_resume_test {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;

class TrainResume : public TrainTest {};

// The trainer adds weight decay to the gradients when the method applies momentum.
TEST_F(TrainResume, ResumesWithTheWeightDecayOfAMethodWithMomentum) {
  const std::vector<std::string> common{
      "--ranks", "2", "--steps", "8", "--method", "sketch:momentum=0.9", "--weight-decay", "0.1"};
  auto halved = common;
  halved.insert(halved.end(), {"--stop-after", "4"});
  ASSERT_EQ(run(command("straight", common)).code, 0);
  ASSERT_EQ(run(command("halves", halved)).code, 1);
  ASSERT_EQ(resume("halves").code, 0);
  EXPECT_EQ(result("straight"), result("halves"));
}

TEST_F(TrainResume, ResumesToTheSameBits) {
  const std::vector<std::string> common{"--ranks", "2", "--steps", "20", "--method", "topk"};
  auto halved = common;
  halved.insert(halved.end(), {"--stop-after", "10"});
  ASSERT_EQ(run(command("straight", common)).code, 0);
  const Finished half = run(command("halves", halved));
  EXPECT_EQ(half.code, 1) << half.err;
  EXPECT_EQ(json_of(folder / "halves" / "summary.json")["status"], "interrupted");
  const Finished rest = resume("halves");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(result("straight"), result("halves"));
  // The residuals must be the same, too.
  for (const char* rank : {"rank-0.state", "rank-1.state"}) {
    EXPECT_EQ(text_of(folder / "straight" / "checkpoint-20" / rank),
              text_of(folder / "halves" / "checkpoint-20" / rank));
  }
  EXPECT_FALSE(fs::exists(folder / "halves" / "checkpoint-10"));

  // A checkpoint that was cut is refused, and so are other ranks; the results stay.
  const Finished fewer = resume("halves", {"--ranks", "1"});
  EXPECT_EQ(fewer.code, 2);
  EXPECT_NE(fewer.err.find("leave out --ranks or give --ranks 2"), std::string::npos) << fewer.err;
  fs::resize_file(folder / "halves" / "checkpoint-20" / "model.bin", 1000);
  const Finished cut = resume("halves");
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("model.bin is cut or altered"), std::string::npos) << cut.err;
  EXPECT_EQ(json_of(folder / "halves" / "summary.json")["status"], "finished");

  // So are files of a later format.
  for (const char* name : {"checkpoint.json", "config.json"}) {
    const std::string whole = text_of(folder / "halves" / name);
    auto json = json_of(folder / "halves" / name);
    json["format"] = 2;
    std::ofstream(folder / "halves" / name) << json;
    const Finished newer = resume("halves");
    EXPECT_EQ(newer.code, 1);
    EXPECT_NE(newer.err.find(std::string(name) + ": format 2 was written by a newer"),
              std::string::npos)
        << newer.err;
    std::ofstream(folder / "halves" / name) << whole;
  }

  // Files that are no longer JSON, or lack a field, are called damaged.
  for (const char* text : {"x", "{}"}) {
    for (const char* name : {"checkpoint.json", "config.json"}) {
      const std::string whole = text_of(folder / "halves" / name);
      std::ofstream(folder / "halves" / name) << text;
      const Finished damaged = resume("halves");
      EXPECT_EQ(damaged.code, 1);
      EXPECT_NE(damaged.err.find(std::string(name) + " is"), std::string::npos) << damaged.err;
      EXPECT_NE(damaged.err.find("damaged"), std::string::npos) << damaged.err;
      EXPECT_EQ(damaged.err.find("json.exception"), std::string::npos) << damaged.err;
      EXPECT_EQ(std::ranges::count(damaged.err, '\n'), 1) << damaged.err;
      std::ofstream(folder / "halves" / name) << whole;
    }
  }
}

TEST_F(TrainResume, LocalStepsResumeInTheMiddleOfARoundToTheSameBits) {
  const std::vector<std::string> common{
      "--ranks",       "3",    "--steps",   "14", "--method",    "topk:values=2bit",
      "--local-steps", "5",    "--overlap", "1",  "--fragments", "2",
      "--optimizer",   "adamw"};
  auto halved = common;
  halved.insert(halved.end(), {"--stop-after", "8"});
  const Finished straight = run(command("straight", common));
  ASSERT_EQ(straight.code, 0) << straight.err;
  ASSERT_EQ(run(command("halves", halved)).code, 1);
  const Finished rest = resume("halves");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(result("straight"), result("halves"));
  for (const char* name : {"rank-0.state", "rank-2.state", "rank-0.local", "rank-2.local"}) {
    EXPECT_EQ(text_of(folder / "straight" / "checkpoint-14" / name),
              text_of(folder / "halves" / "checkpoint-14" / name));
  }
  const auto summary = json_of(folder / "halves" / "summary.json");
  EXPECT_EQ(summary["local_steps"], 5);
  EXPECT_GT(summary["ratio"], 100);  // against gradients in every step
  // Only these steps exchange something: turns after 2 and 5 of 5 steps, the last at once.
  for (const auto& line : lines_of(folder / "straight" / "steps.jsonl")) {
    const int step = line["step"];
    const bool applied = step == 3 || step == 6 || step == 8 || step == 11 || step >= 13;
    EXPECT_EQ(line["payload_bytes"] > 0, applied) << line;
  }

  fs::resize_file(folder / "halves" / "checkpoint-14" / "model-1.bin", 1000);
  const Finished cut = resume("halves");
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("is cut or altered"), std::string::npos) << cut.err;
  const auto error = [&](const std::vector<std::string>& words) {
    return run(command("wrong", words)).err;
  };
  EXPECT_NE(error({"--overlap", "2"}).find("--overlap needs --local-steps"), std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--fragments", "5"}).find("fragments must be 1 to 4"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--outer", "adam"}).find("no outer optimizer 'adam'"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--method", "sketch:momentum=0.9"}).find("--outer"),
            std::string::npos);
}

// Stopped among the steps before the first round, at their end, and in a round.
TEST_F(TrainResume, LocalStepsAfterASynchronousStartResumeToTheSameBits) {
  const std::vector<std::string> common{
      "--ranks",       "2", "--steps",       "12", "--method",    "topk:values=2bit",
      "--local-steps", "4", "--local-start", "3",  "--optimizer", "adamw"};
  const Finished straight = run(command("straight", common));
  ASSERT_EQ(straight.code, 0) << straight.err;
  for (const char* stop : {"2", "3", "5"}) {
    SCOPED_TRACE(stop);
    auto halved = common;
    halved.insert(halved.end(), {"--stop-after", stop});
    const std::string out = std::string("halves") + stop;
    ASSERT_EQ(run(command(out, halved)).code, 1);
    const Finished rest = resume(out);
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(result("straight"), result(out));
  }
  for (const auto& line : lines_of(folder / "straight" / "steps.jsonl")) {
    const int step = line["step"];
    const bool exchanged = step <= 3 || step == 7 || step == 11 || step == 12;
    EXPECT_EQ(line["payload_bytes"] > 0, exchanged) << line;
  }
  const auto error = [&](const std::vector<std::string>& words) {
    return run(command("wrong", words)).err;
  };
  EXPECT_NE(error({"--local-start", "2"}).find("--local-start needs --local-steps"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--local-start", "2", "--start-method", "topk"})
                .find("--start-method topk"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--start-method", "bf16"})
                .find("--start-method needs --local-start"),
            std::string::npos);
}

// A language model has a loss and no accuracy, in every file and on the terminal.
TEST_F(TrainResume, ALanguageModelIsJudgedByItsLossAndResumesToTheSameBits) {
  const auto words = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all{THINREDUCE_PROGRAM,
                                 "train",
                                 "--model",
                                 "gpt",
                                 "--ranks",
                                 "2",
                                 "--batch",
                                 "2",
                                 "--steps",
                                 "6",
                                 "--method",
                                 "topk",
                                 "--evaluate-every",
                                 "2",
                                 "--out",
                                 folder / out,
                                 "--evaluate-samples",
                                 "8"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Finished end = run(words("straight", {}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out.find("accuracy"), std::string::npos) << end.out;
  EXPECT_NE(end.out.find("test loss"), std::string::npos) << end.out;
  EXPECT_EQ(run(words("halves", {"--stop-after", "3"})).code, 1);
  EXPECT_EQ(resume("halves", {"--stop-after", "5"}).code, 1);
  EXPECT_EQ(losses("straight").rfind(losses("halves"), 0), 0U) << losses("halves");
  const auto tests = lines_of(folder / "straight" / "evaluations.jsonl");
  ASSERT_EQ(tests.size(), 3U);
  EXPECT_EQ(lines_of(folder / "halves" / "evaluations.jsonl")[1]["loss"], tests[1]["loss"]);
  EXPECT_EQ(tests[0]["samples"], 8);
  EXPECT_EQ(tests[2]["samples"], 1858);  // 119,031 characters in windows of 64
  EXPECT_TRUE(tests[2]["accuracy"].is_null());
  const auto summary = json_of(folder / "straight" / "summary.json");
  EXPECT_EQ(summary["metric"], "loss");
  EXPECT_TRUE(summary["accuracy"].is_null());
  EXPECT_TRUE(summary["best_accuracy"].is_null());
  EXPECT_EQ(summary["loss"], tests[2]["loss"]);
  EXPECT_LT(summary["loss"].get<double>(), std::log(83));  // better than chance
  const auto config = json_of(folder / "straight" / "config.json");
  EXPECT_EQ(config["optimizer"], "adamw");
  EXPECT_EQ(config["metric"], "loss");
  const Finished report = run({THINREDUCE_PROGRAM, "report", folder / "straight", folder / "halves",
                               "-o", folder / "report.html"});
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(report.out.find("accuracy"), std::string::npos) << report.out;
}

// Resuming a run that is finished changes neither its figures nor its evaluations.
TEST_F(TrainResume, AFinishedRunResumesToItsOwnSummary) {
  ASSERT_EQ(run(command("a", {"--ranks", "2", "--steps", "6", "--link", "500mbit"})).code, 0);
  const auto summary = json_of(folder / "a" / "summary.json");
  const auto evaluations = text_of(folder / "a" / "evaluations.jsonl");
  EXPECT_GT(summary["step_seconds"].get<double>(), 0);
  const Finished again = resume("a");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json_of(folder / "a" / "summary.json"), summary);
  EXPECT_EQ(text_of(folder / "a" / "evaluations.jsonl"), evaluations);
  // A given link counts, even one without a limit.
  ASSERT_EQ(resume("a", {"--link", "unlimited"}).code, 0);
  EXPECT_EQ(json_of(folder / "a" / "summary.json")["link"], "unlimited");
}

// The run is killed in the middle of an epoch of 937 steps, at a step that depends on the machine.
TEST_F(TrainResume, AKilledRunResumesFromItsLastCheckpointToTheSameBits) {
  const std::vector<std::string> common{"--ranks",    "2",       "--epochs", "50",
                                        "--batch",    "32",      "--method", "topk",
                                        "--schedule", "constant"};
  auto words = common;
  words.insert(words.end(), {"--checkpoint-every", "3"});
  Process training(command("killed", words), {});
  const fs::path checkpoint = folder / "killed" / "checkpoint.json";
  for (int tries = 0; tries < 15000 && !fs::exists(checkpoint); ++tries) {
    std::this_thread::sleep_for(20ms);
  }
  training.kill(SIGKILL);
  (void)training.finish();
  const auto saved = json_of(checkpoint)["step"].get<std::uint64_t>();
  EXPECT_EQ(saved % 3, 0U);
  ASSERT_LT(saved, 937U) << "the epoch ended before the run was killed";
  const std::string stop = std::to_string(saved + 4);
  const Finished rest = resume("killed", {"--stop-after", stop, "--checkpoint-every", "1000"});
  ASSERT_EQ(rest.code, 1) << rest.err;
  words = common;
  words.insert(words.end(), {"--stop-after", stop});
  ASSERT_EQ(run(command("straight", words)).code, 1);
  EXPECT_EQ(losses("straight"), losses("killed"));
  for (const char* rank : {"rank-0.state", "rank-1.state"}) {
    EXPECT_EQ(text_of(folder / "straight" / ("checkpoint-" + stop) / rank),
              text_of(folder / "killed" / ("checkpoint-" + stop) / rank));
  }
}

// The run would take hours; Ctrl-C stops it.
TEST_F(TrainResume, EndsCleanlyOnCtrlC) {
  for (const std::string transport : {"threads", "gloo"}) {
    Process training(command(transport, {"--ranks", "2", "--epochs", "50", "--transport", transport,
                                         "--check-every", "5", "--method", "topk"}),
                     {});
    const fs::path steps = folder / transport / "steps.jsonl";
    for (int tries = 0; tries < 3000 && (!fs::exists(steps) || fs::file_size(steps) == 0);
         ++tries) {
      std::this_thread::sleep_for(100ms);
    }
    if (transport == "threads") {
      training.kill(SIGINT);
    } else {
      // A terminal sends the signal to the launcher, which waits, and to the ranks.
      std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", training.pid()));
      for (pid_t pid = 0; file >> pid;) ::kill(pid, SIGINT);
      training.kill(SIGINT);
    }
    const Finished end = training.finish();
    EXPECT_EQ(end.code, 1) << end.err;
    const auto summary = json_of(folder / transport / "summary.json");
    EXPECT_EQ(summary["status"], "interrupted");
    const auto step = summary["steps"].get<std::uint64_t>();
    EXPECT_EQ(lines_of(steps).size(), step);
    const Finished more = resume(transport, {"--stop-after", std::to_string(step + 2)});
    EXPECT_EQ(more.code, 1);
    EXPECT_EQ(json_of(folder / transport / "summary.json")["steps"], step + 2) << more.err;
  }
}

}  // namespace
}  // namespace thinreduce::train_resume_test

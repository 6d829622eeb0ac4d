// Runs the program as users do: its output, its lists, and the usage that it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/help_text.h"
#include "tests/processes.h"
#include "thinreduce/method/registry.h"

namespace thinreduce::command_line_test {
namespace {

using testing_support::Finished;
using testing_support::run;

const std::string kProgram = THINREDUCE_PROGRAM;

struct Usage {
  std::vector<std::string> arguments;
  std::string said;
  std::map<std::string, std::string> environment;
};

TEST(WrongUsage, ExitsWithTwoAndSaysWhatToDo) {
  const std::vector<Usage> cases{
      {{}, "`thinreduce` needs a command: methods, train, bench, plan, report", {}},
      {{"bogus"}, "`thinreduce` has no command 'bogus'; the commands are: methods, train", {}},
      {{"--bogus"}, "`thinreduce` has no option '--bogus'", {}},
      {{"bench"}, "`thinreduce bench` needs a command: codec, reduce", {}},
      {{"bench", "bogus"}, "`thinreduce bench` has no command 'bogus'", {}},
      {{"methods", "extra"}, "there is no method 'extra'", {}},
      {{"methods", "topk", "fft"}, "`thinreduce methods` takes one NAME (got 'fft', too)", {}},
      {{"bench", "reduce", "--ranks"}, "--ranks needs a value", {}},
      {{"bench", "codec", "--floats", "1.5"}, "must be a whole number from 1 to 4294967296", {}},
      {{"bench", "codec", "--warmup", "-2"}, "must be auto or a whole number", {}},
      {{"bench", "reduce", "--timeout", "0"}, "must be a number, 0.01 to 1000000; got '0'", {}},
      {{"bench", "reduce", "--method", "topq"}, "the methods are: fp32", {}},
      {{"bench", "reduce", "--method", "topk:k=1"}, "its options are: density", {}},
      {{"bench", "reduce", "--method", "topk:density=x"}, "got 'x'", {}},
      {{"bench", "reduce", "--method", "topk:density"}, "option=value", {}},
      {{"bench", "reduce", "--method", "topk:"}, "without an option=value after it", {}},
      {{"report", "-o"}, "--output needs a value", {}},
      {{"bench", "reduce", "--method", "topk:feedback=on,feedback=on"}, "twice", {}},
      {{"bench", "reduce", "--method", "fp32:x=1"}, "no options", {}},
      {{"bench", "reduce", "--method", "dqsg:levels=4"}, "levels must be odd", {}},
      {{"bench", "codec", "--method", "auto", "--floats", "10"}, "name a method", {}},
      {{"bench", "reduce", "--method", "auto:methods=gradiveq"},
       "joined by +, without repeats",
       {}},
      {{"plan"}, "give the link to plan for", {}},
      {{"plan", "--link", "1gbit", "--ranks", "1"}, "give --ranks 2 or more", {}},
      {{"plan", "--link", "5ms"}, "'5ms' is not a bandwidth", {}},
      {{"plan", "--link", "1gbit,5mbit"}, "'5mbit' is not a latency", {}},
      {{"plan", "--link", "1gbit", "--method", "auto:methods=dqsg,fft"}, "methods=dqsg+fft", {}},
      {{"plan", "--link", "1gbit", "--method", "dqsg"}, "works with --method auto", {}},
      {{"plan", "--link", "1gbit", "--transport", "gloo"}, "needs --probe", {}},
      {{"plan", "--link", "1gbit", "--model", "gpt9"}, "cifarnet", {}},
      {{"plan", "--link", "1gbit", "--model", "gpt", "--floats", "9"}, "leave out --model or", {}},
      {{"plan", "--probe", "--model", "gpt", "--transport", "gloo"}, "--save-gradients DIR", {}},
      {{"plan", "--link", "1gbit", "--data-dir", "d"}, "--data-dir needs --model", {}},
      {{"bench", "codec", "--gradients", "recorded", "--warmup", "3"}, "leave out --warmup", {}},
      {{"bench", "reduce", "--link", "fast"}, "100mbit,5ms", {}},
      {{"bench", "reduce", "--simulate", "1gbit;3"}, "must be RANKS=LINK", {}},
      {{"bench", "codec", "--threads", "0"}, "--threads", {}},
      {{"bench", "reduce", "--simulate", "1gbit;4=1mbit"}, "the ranks are 0 to 3", {}},
      {{"bench", "reduce", "--simulate", "1gbit", "--link", "1gbit"}, "leave out", {}},
      {{"bench", "reduce", "--simulate", "1gbit", "--transport", "gloo"}, "leave out", {}},
      {{"bench", "reduce", "--simulate", "1gbit;1-0=1mbit"}, "not be above its last", {}},
      {{"bench", "reduce", "--simulate", "3=1mbit"}, "must begin with the link", {}},
      {{"bench", "reduce", "--link", "1gbit;1=1mbit"}, "--simulate", {}},
      {{"bench", "reduce", "--ranks", "0"},
       "--ranks must be a whole number from 1 to 1024; got",
       {}},
      {{"bench", "reduce", "topk"}, "give a method as --method SPEC", {}},
      {{"bench", "reduce", "--interface", "eth0"}, "add --transport gloo", {}},
      {{"bench", "reduce", "--secret-file", "f"}, "add --transport gloo", {}},
      {{"bench", "reduce", "--transport", "gloo"},
       "the secret has 5 bytes",
       {{"THINREDUCE_SECRET", "short"}}},
      {{"bench", "reduce", "--transport", "gloo", "--interface", "eth77"},
       "no network interface 'eth77'",
       {}},
      {{"bench", "codec", "--gradients", ""}, "--gradients must not be empty", {}},
      {{"report", "runs", "-o", ""}, "must not be empty", {}},
      {{"bench", "reduce", "--floats", "-3"}, "--floats", {}},
      {{"bench", "reduce", "--transport", "pigeon"}, "one of: threads, gloo, mpi", {}},
      {{"bench", "codec", "--nonsense"}, "`thinreduce bench codec` has no option '--nonsense'", {}},
      {{"bench", "reduce", "--transport", "gloo"}, "WORLD_SIZE", {{"RANK", "0"}}},
      {{"bench", "reduce", "--transport", "gloo", "--ranks", "3"},
       "WORLD_SIZE says 2",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29555"}}},
  };
  for (const Usage& usage : cases) {
    std::vector<std::string> command{kProgram};
    command.insert(command.end(), usage.arguments.begin(), usage.arguments.end());
    const Finished end = run(command, usage.environment);
    EXPECT_EQ(end.code, 2) << usage.said << ": " << end.err;
    EXPECT_NE((end.out + end.err).find(usage.said), std::string::npos) << end.out << end.err;
  }
}

TEST(PlanCommand, CompressesOnASlowLink) {
  const auto page =
      std::filesystem::temp_directory_path() / fmt::format("plan-{}.html", ::getpid());
  const Finished end = run({kProgram, "plan", "--link", "10mbit,1ms", "--ranks", "3", "--floats",
                            "100k", "--json", "--html", page});
  ASSERT_EQ(end.code, 0) << end.err;
  std::ifstream file(page);
  const std::string html(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(page);
  EXPECT_NE(html.find("<svg"), std::string::npos) << html;
  EXPECT_NE(html.find("is the fastest from 10mbit to"), std::string::npos) << html;
  const auto plan = nlohmann::json::parse(end.out);
  EXPECT_NE(plan["buckets"][0]["spec"], "fp32") << end.out;
  EXPECT_LT(plan["predicted_seconds"], plan["fp32_seconds"]);
  EXPECT_NEAR(plan["bytes_per_second"].get<double>(), 1.25e6, 1e5);
}

TEST(Help, ShowsRangesAndDefaultsThatAgree) {
  const std::vector<std::vector<std::string>> commands{
      {}, {"methods"}, {"bench"}, {"bench", "codec"}, {"bench", "reduce"}, {"plan"}, {"report"}};
  std::size_t ranges = 0;
  for (const auto& words : commands) {
    std::vector<std::string> command{kProgram};
    command.insert(command.end(), words.begin(), words.end());
    command.emplace_back("--help");
    const Finished end = run(command);
    EXPECT_EQ(end.code, 0) << end.err;
    ranges += testing_support::check_help(end.out);
  }
  EXPECT_GE(ranges, 6U);
}

TEST(WholeNumbers, MayHaveAnExponentOrASuffix) {
  for (const auto& [text, floats] : std::map<std::string, int>{
           {"1e3", 1000}, {"1k", 1000}, {"0.0256M", 25600}, {"1.001k", 1001}}) {
    const Finished end = run({kProgram, "bench", "codec", "--method", "fp32", "--floats", text,
                              "--steps", "2e0", "--warmup", "auto", "--json"});
    ASSERT_EQ(end.code, 0) << text << end.err;
    EXPECT_EQ(nlohmann::json::parse(end.out)["floats"], floats);
  }
}

TEST(Simulate, CountsLatenciesAndTakesTheirTime) {
  const auto reduce = [&](const std::string& link, const std::string& ranks) {
    const Finished end =
        run({kProgram, "bench", "reduce", "--simulate", link, "--ranks", ranks, "--method", "fp32",
             "--method", "topk:collective=owner", "--floats", "10k", "--steps", "1", "--json"});
    EXPECT_EQ(end.code, 0) << end.err;
    return nlohmann::json::parse(end.out);
  };
  const auto results = reduce("unlimited,10ms", "8");
  // An agreement and direct messages, the fastest with such a latency; an agreement and owners.
  EXPECT_EQ(results[0]["latencies"], 2);
  EXPECT_EQ(results[1]["latencies"], 3);
  EXPECT_GE(results[0]["seconds"].get<double>(), 0.02);
  EXPECT_GE(results[1]["seconds"].get<double>(), 0.03);
  for (const auto& result : results) {
    EXPECT_EQ(result["simulated"], true);
    EXPECT_EQ(result["identical"], true);
    EXPECT_EQ(result["link"], "unlimited,10ms");
    EXPECT_GE(result["fp32_seconds"].get<double>(), 0.02);
    // An agreement, parts and answers.
    EXPECT_GE(result["bf16_seconds"].get<double>(), 0.03);
  }
  // One slow rank slows all.
  EXPECT_GE(reduce("unlimited;1=unlimited,100ms", "3")[0]["seconds"].get<double>(), 0.2);
}

TEST(UnknownSimd, IsRefusedWithWhatThereIs) {
  const Finished end =
      run({kProgram, "bench", "codec", "--floats", "1000"}, {{"THINREDUCE_SIMD", "AVX9000"}});
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("reference"), std::string::npos) << end.err;
}

TEST(Methods, AreListedForPeopleAndScripts) {
  const Finished people = run({kProgram, "methods"});
  const Finished scripts = run({kProgram, "methods", "--json"});
  ASSERT_EQ(people.code, 0);
  ASSERT_EQ(scripts.code, 0);
  const auto list = nlohmann::json::parse(scripts.out);
  ASSERT_EQ(list.size(), methods().size() + 1);  // `auto` is listed, too
  for (const auto& method : list) {
    EXPECT_NE(people.out.find(method["name"].get<std::string>()), std::string::npos);
    EXPECT_FALSE(method["algebra"].get<std::string>().empty());
    EXPECT_FALSE(method["paper"].get<std::string>().empty());
    for (const auto& option : method["options"]) EXPECT_TRUE(option.contains("paper_only"));
    for (const auto& preset : method["presets"]) {
      EXPECT_NE(people.out.find(preset["options"].get<std::string>()), std::string::npos);
    }
  }
  const Finished one = run({kProgram, "methods", "topk"});
  EXPECT_TRUE(one.out.starts_with("topk\n")) << one.out;
  EXPECT_EQ(one.out.find("powersgd"), std::string::npos) << one.out;
  EXPECT_NE(people.out.find("(old name: bucket)"), std::string::npos) << people.out;
}

TEST(BenchCodec, HasTheKeysOfItsContract) {
  const Finished end = run({kProgram, "bench", "codec", "--method", "topk:density=0.01", "--floats",
                            "100003", "--shapes", "none", "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto result = nlohmann::json::parse(end.out);
  for (const char* key : {"method", "floats", "wire_bytes", "ratio", "encode_gbps", "decode_gbps",
                          "memcpy_gbps", "nmse", "shapes"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_GT(result["ratio"].get<double>(), 50);
  const Finished table = run({kProgram, "bench", "codec", "--floats", "1000"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("bf16"), std::string::npos);
}

// One large square matrix has far fewer rows and columns per element than the layers of a network.
TEST(BenchCodec, HasTheLayersOfANetwork) {
  const auto ratio = [](const std::string& floats, const std::vector<std::string>& more) {
    std::vector<std::string> command{kProgram,   "bench", "codec",    "--json",
                                     "--steps",  "1",     "--method", "powersgd:basis=4",
                                     "--floats", floats};
    command.insert(command.end(), more.begin(), more.end());
    const Finished end = run(command);
    EXPECT_EQ(end.code, 0) << end.err;
    return nlohmann::json::parse(end.out)["ratio"].get<double>();
  };
  // ResNet-50's factors at basis 4 have 330,000 floats; 54,120 more are in vectors.
  EXPECT_NEAR(ratio("25557032", {}), 67, 3);
  EXPECT_GT(ratio("1000000", {"--shapes", "none"}), 4 * ratio("1000000", {}));
  EXPECT_GT(ratio("4096", {"--shapes", "resnet50"}), 0.9);
  // Its tensors would be too small to be compressed, so it has no shapes.
  EXPECT_GT(ratio("50000", {}), 10);
  // Nor can it have the shapes that were asked for.
  const Finished few = run({kProgram, "bench", "codec", "--floats", "4095", "--shapes", "resnet50",
                            "--method", "powersgd"});
  EXPECT_NE(few.code, 0);
  EXPECT_NE(few.err.find("at least 4096 floats (got --floats 4095)"), std::string::npos) << few.err;
}

}  // namespace
}  // namespace thinreduce::command_line_test

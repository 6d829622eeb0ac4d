// The program as users run it: real processes, sockets and signals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/help_text.h"
#include "tests/processes.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

using testing_support::Finished;
using testing_support::Process;
using testing_support::run;
using namespace std::chrono_literals;

const std::string kProgram = THINREDUCE_PROGRAM;

std::map<std::string, std::string> rank_environment(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

std::vector<std::string> reduce_command(const std::string& transport, const std::string& spec,
                                        const std::vector<std::string>& more = {}) {
  std::vector<std::string> command{kProgram,  "bench",  "reduce",   "--transport",
                                   transport, "--json", "--method", spec,
                                   "--steps", "2",      "--floats", "100003"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

void expect_good(const Finished& finished, const std::string& spec, int ranks) {
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto result = nlohmann::json::parse(finished.out);
  EXPECT_TRUE(result["identical"].get<bool>()) << finished.out;
  EXPECT_EQ(result["ranks"], ranks);
  EXPECT_EQ(result["floats"], 100003);
  EXPECT_EQ(result["method"].get<std::string>().substr(0, spec.size()), spec);
  EXPECT_GT(result["bytes_sent"].get<double>(), 0);
  EXPECT_GT(result["seconds"].get<double>(), 0);
  EXPECT_GT(result["fp32_seconds"].get<double>(), 0);
  EXPECT_GE(result["nmse"].get<double>(), 0);
  // The error of two steps of a coarse unbiased quantizer may reach the size of the gradient.
  EXPECT_LT(result["nmse"].get<double>(), 2);
  EXPECT_EQ(result["reference_seconds"].is_null(), result["transport"] == "threads");
  for (const char* stage : {"encode", "wire", "decode", "wait"}) {
    EXPECT_GE(result["stages"][stage].get<double>(), 0) << stage;
  }
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodInfo& info : methods()) names.push_back(info.name);
  return names;
}

class EveryMethod : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, EveryMethod, testing::ValuesIn(method_names()));

TEST_P(EveryMethod, OnThreads) {
  expect_good(run(reduce_command("threads", GetParam(), {"--ranks", "3"})), GetParam(), 3);
}

TEST_P(EveryMethod, OverGlooStartedLocally) {
  expect_good(run(reduce_command("gloo", GetParam(), {"--ranks", "4"})), GetParam(), 4);
}

TEST_P(EveryMethod, UnderMpirun) {
  if (std::string(THINREDUCE_MPIEXEC).empty()) GTEST_SKIP() << "built without MPI";
  std::vector<std::string> command{THINREDUCE_MPIEXEC, "--oversubscribe", "-n", "3"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  for (const auto& word : reduce_command("mpi", GetParam())) command.push_back(word);
  expect_good(run(command), GetParam(), 3);
}

TEST(Ranks, StartMpirunThemselves) {
  if (std::string(THINREDUCE_MPIEXEC).empty()) GTEST_SKIP() << "built without MPI";
  expect_good(run(reduce_command("mpi", "dqsg", {"--ranks", "2"})), "dqsg", 2);
}

TEST(Ranks, FindOneAnotherByTheVariablesOfTorchrun) {
  const int port = free_port();
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(reduce_command("gloo", "topk", {"--link", "200mbit,1ms"}),
                       rank_environment(rank, 3, port));
  }
  std::vector<Finished> ends;
  for (auto& rank : ranks) ends.push_back(rank.finish());
  ASSERT_EQ(ends[0].code, 0) << ends[0].err;
  const auto result = nlohmann::json::parse(ends[0].out);
  EXPECT_TRUE(result["identical"].get<bool>());
  EXPECT_TRUE(result["reference_seconds"].is_null());  // the all-reduce of Gloo can't be throttled
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].code, 0);
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].out, "");
  }
}

// Makes a reduce take minutes, so that the kill happens during it.
const std::vector<std::string> kSlow{"--link", "1mbit", "--timeout", "200"};
// The longest time a test waits for something that takes a second on an idle machine.
constexpr std::chrono::seconds kPatience{300};

// Returns the children of a process, oldest first.
std::vector<pid_t> children(pid_t parent) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", parent));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

// Returns the ranks that a launcher has started, as soon as all of them run. Gives them time to
// begin the reduce, too; a test must hold wherever they are then.
std::vector<pid_t> wait_for_ranks(pid_t launcher, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (children(launcher).size() < count && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(10ms);
  }
  std::this_thread::sleep_for(1s);
  return children(launcher);
}

TEST(KilledRank, IsNamedByAllOthersOverGloo) {
  const int port = free_port();
  std::vector<Process> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back(reduce_command("gloo", "fp32", kSlow), rank_environment(rank, 4, port));
  }
  std::this_thread::sleep_for(1500ms);
  ranks[2].kill(SIGKILL);
  for (const std::size_t rank : {0, 1, 3}) {
    const Finished end = ranks[rank].finish(kPatience);
    EXPECT_EQ(end.code, 1) << "rank " << rank << ", signal " << end.signal;
    EXPECT_NE(end.err.find("rank 2"), std::string::npos) << end.err;
  }
}

TEST(KilledRank, EndsTheLocalLauncherWithAnError) {
  auto command = reduce_command("gloo", "fp32", kSlow);
  command.insert(command.end(), {"--ranks", "3"});
  Process launcher(command, {});
  const auto ranks = wait_for_ranks(launcher.pid(), 3);
  ASSERT_EQ(ranks.size(), 3U);
  ::kill(ranks[1], SIGKILL);
  const Finished end = launcher.finish(kPatience);
  EXPECT_EQ(end.code, 1) << end.signal;
  EXPECT_NE(end.err.find("rank 1 was ended by signal 9"), std::string::npos) << end.err;
}

TEST(KilledRank, AbortsMpirunWithAMessage) {
  if (std::string(THINREDUCE_MPIEXEC).empty()) GTEST_SKIP() << "built without MPI";
  std::vector<std::string> command{THINREDUCE_MPIEXEC, "--oversubscribe", "-n", "3"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  for (const auto& word : reduce_command("mpi", "fp32", kSlow)) command.push_back(word);
  Process mpirun(command, {});
  const auto ranks = wait_for_ranks(mpirun.pid(), 3);
  ASSERT_EQ(ranks.size(), 3U);
  ::kill(ranks[1], SIGKILL);
  const Finished end = mpirun.finish(kPatience);
  EXPECT_NE(end.code, 0);
  EXPECT_EQ(end.signal, 0) << "mpirun hung";
  EXPECT_NE((end.out + end.err).find("rank 1"), std::string::npos) << end.out << end.err;
}

TEST(InterruptedRun, EndsAllItsRanks) {
  auto command = reduce_command("gloo", "fp32", kSlow);
  command.insert(command.end(), {"--ranks", "3"});
  Process launcher(command, {});
  const auto ranks = wait_for_ranks(launcher.pid(), 3);
  ASSERT_EQ(ranks.size(), 3U);
  launcher.kill(SIGTERM);
  EXPECT_EQ(launcher.finish(kPatience).signal, SIGTERM);
  for (int tries = 0; tries < 600 && ::kill(ranks[0], 0) == 0; ++tries) {
    std::this_thread::sleep_for(100ms);
  }
  for (const pid_t rank : ranks) {
    std::ifstream stat(fmt::format("/proc/{}/stat", rank));
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    // Ended, or a zombie that has not been reaped yet.
    EXPECT_TRUE(text.empty() || text.find(") Z ") != std::string::npos) << text;
  }
}

TEST(BadInput, SpecsThatDifferBetweenRanks) {
  const int port = free_port();
  Process first(reduce_command("gloo", "topk:density=0.01"), rank_environment(0, 2, port));
  Process second(reduce_command("gloo", "topk:density=0.02"), rank_environment(1, 2, port));
  for (auto* rank : {&first, &second}) {
    const Finished end = rank->finish();
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.err.find("density=0.01"), std::string::npos) << end.err;
    EXPECT_NE(end.err.find("density=0.02"), std::string::npos) << end.err;
  }
}

TEST(BadInput, BucketsOfDifferentSize) {
  const int port = free_port();
  auto longer = reduce_command("gloo", "fp32");
  longer.back() = "100004";
  Process first(reduce_command("gloo", "fp32"), rank_environment(0, 2, port));
  Process second(longer, rank_environment(1, 2, port));
  for (auto* rank : {&first, &second}) {
    const Finished end = rank->finish();
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.err.find("100003 on rank 0 and 100004 on rank 1"), std::string::npos) << end.err;
  }
}

TEST(BadInput, NobodyAnswersAtMasterAddr) {
  auto environment = rank_environment(1, 2, free_port());
  const Finished end =
      Process(reduce_command("gloo", "fp32", {"--timeout", "1"}), environment).finish(kPatience);
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("no server answers at 127.0.0.1:" + environment["MASTER_PORT"]),
            std::string::npos)
      << end.err;
}

TEST(BadInput, ARankThatNeverComesIsNamed) {
  const int port = free_port();
  const Finished end =
      Process(reduce_command("gloo", "fp32", {"--timeout", "2"}), rank_environment(0, 2, port))
          .finish(kPatience);
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("rank 1"), std::string::npos) << end.err;
}

// A file with a secret, which ends with this object.
class SecretFile {
 public:
  explicit SecretFile(const std::string& text, std::filesystem::perms mode = kOwner)
      : path_(fmt::format("{}secret_{}_{}", testing::TempDir(), ::getpid(), text.size())) {
    std::ofstream(path_) << text << '\n';
    std::filesystem::permissions(path_, mode);
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

  static constexpr auto kOwner =
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

 private:
  std::string path_;
};

void expect_identical(const Finished& end) {
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(nlohmann::json::parse(end.out)["identical"].get<bool>()) << end.out;
}

TEST(Secret, RanksWithoutItAreRefusedAndTheOthersGoOnWaiting) {
  const int port = free_port();
  const SecretFile right("correct horse battery staple");
  const SecretFile wrong("another horse, another battery");
  const auto start = [&](int rank, const SecretFile* secret) {
    auto command = reduce_command("gloo", "dqsg");
    if (secret != nullptr) command.insert(command.end(), {"--secret-file", secret->path()});
    return Process(command, rank_environment(rank, 2, port));
  };
  Process zero = start(0, &right);
  const Finished other = start(1, &wrong).finish(kPatience);
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find(fmt::format("rank 1: rank 0 at 127.0.0.1:{} has another secret", port)),
            std::string::npos)
      << other.err;
  const Finished none = start(1, nullptr).finish(kPatience);
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("has no secret, and rank 0 has one"), std::string::npos) << none.err;
  // A stranger that sends anything.
  std::string why;
  const SocketAddress address = resolve("127.0.0.1", static_cast<std::uint16_t>(port), why).at(0);
  const Socket stranger(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(stranger.fd(), address.get(), address.length), 0);
  const std::string garbage = "thinsec2" + std::string(10'000, 'x');
  EXPECT_GT(::send(stranger.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  Process one = start(1, &right);
  expect_identical(zero.finish(kPatience));
  EXPECT_EQ(one.finish(kPatience).code, 0);
}

TEST(Secret, EveryTransportBetweenProcessesTakesIt) {
  const SecretFile secret("correct horse battery staple");
  for (const char* const transport : {"gloo", "mpi"}) {
    expect_identical(
        run(reduce_command(transport, "topk", {"--ranks", "3", "--secret-file", secret.path()})));
  }
}

TEST(Secret, AFileThatOthersMayReadIsRefused) {
  const SecretFile open("correct horse battery staple",
                        SecretFile::kOwner | std::filesystem::perms::others_read);
  const Finished end =
      run(reduce_command("gloo", "fp32", {"--ranks", "2", "--secret-file", open.path()}));
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("has mode 604"), std::string::npos) << end.err;
  EXPECT_NE(end.err.find("chmod 600 " + open.path()), std::string::npos) << end.err;
}

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
      {{"methods", "topk", "fft"}, "`thinreduce methods` takes no arguments (got 'fft')", {}},
      {{"bench", "reduce", "--ranks"}, "--ranks needs a value", {}},
      {{"bench", "codec", "--floats", "1.5"}, "must be a whole number from 1 to 4294967296", {}},
      {{"bench", "codec", "--warmup", "-2"}, "must be auto or a whole number", {}},
      {{"bench", "reduce", "--timeout", "0"}, "must be a number, 0.01 to 1000000; got '0'", {}},
      {{"bench", "reduce", "--method", "topq"}, "the methods are: fp32", {}},
      {{"bench", "reduce", "--method", "topk:k=1"}, "its options are: density", {}},
      {{"bench", "reduce", "--method", "topk:density=x"}, "got 'x'", {}},
      {{"bench", "reduce", "--method", "topk:density"}, "option=value", {}},
      {{"bench", "reduce", "--method", "topk:feedback=on,feedback=on"}, "twice", {}},
      {{"bench", "reduce", "--method", "fp32:x=1"}, "no options", {}},
      {{"bench", "reduce", "--method", "dqsg:levels=4"}, "levels must be odd", {}},
      {{"bench", "codec", "--method", "auto", "--floats", "10"}, "name a method", {}},
      {{"bench", "reduce", "--method", "auto:methods=gradiveq"},
       "joined by +, without repeats",
       {}},
      {{"plan"}, "give the link to plan for", {}},
      {{"plan", "--link", "1gbit", "--method", "dqsg"}, "works with --method auto", {}},
      {{"plan", "--link", "1gbit", "--transport", "gloo"}, "needs --probe", {}},
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
       rank_environment(0, 2, 29555)},
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
  EXPECT_TRUE(one.out.starts_with("topk (gather)\n")) << one.out;
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
}  // namespace thinreduce

// Ranks as users run them: real processes, sockets and signals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/processes.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce::end_to_end_test {
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

}  // namespace
}  // namespace thinreduce::end_to_end_test

// Ranks that are busy, stopped, or have forked children.
#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "tests/tracks.h"

namespace thinreduce::gloo_liveness_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// Each rank as a process. Returns the exit codes, -1 for a rank that a signal ended.
std::vector<int> run_processes(int world, const std::function<int(Transport&)>& body) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 2;
      try {
        code = body(*connect_gloo(options_for(rank, world, port)));
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", rank, e.what());
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  std::vector<int> codes(children.size(), -1);
  std::vector<pid_t> stopped;
  for (std::size_t left = children.size(); left > 0;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WUNTRACED);
    const auto rank = static_cast<std::size_t>(std::find(children.begin(), children.end(), ended) -
                                               children.begin());
    if (rank == children.size()) break;
    if (WIFSTOPPED(status)) {
      stopped.push_back(ended);
    } else {
      --left;
    }
    if (WIFEXITED(status)) codes[rank] = WEXITSTATUS(status);
    // Stopped ranks do not end by themselves.
    if (left == stopped.size()) {
      for (const pid_t one : stopped) ::kill(one, SIGKILL);
    }
  }
  return codes;
}

// A number that forked processes share.
class Shared {
 public:
  Shared()
      : number_(static_cast<std::atomic<pid_t>*>(::mmap(nullptr, sizeof(std::atomic<pid_t>),
                                                        PROT_READ | PROT_WRITE,
                                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Shared() { ::munmap(number_, sizeof(*number_)); }
  std::atomic<pid_t>& operator*() { return *number_; }

 private:
  std::atomic<pid_t>* number_;
};

// Exit code 0 means that waiting for `peer` failed with an error that contains `expected`.
int expect_error(Transport& transport, int peer, const Deadline& deadline,
                 const std::string& expected) {
  std::array<std::byte, 4> bytes{};
  std::string said = "nothing thrown";
  try {
    transport.receive(peer, Channel::data, bytes)->wait(deadline);
  } catch (const Error& e) {
    said = e.what();
    if (said.find(expected) != std::string::npos) return 0;
  }
  fmt::print(stderr, "rank {}: {}\n", transport.rank(), said);
  return 1;
}

TEST(GlooLiveness, APeerThatComputesForLongIsWaitedFor) {
  run_gloo_ranks(3, [](Transport& transport) {
    std::array<std::byte, 4> bytes{};
    if (transport.rank() == 2) {
      std::this_thread::sleep_for(seconds(12));
      for (const int peer : {0, 1}) transport.send(peer, Channel::data, bytes)->wait(soon());
      return;
    }
    // Shorter than the computation, and long enough for signs of life from a starved process.
    const auto limits = Deadline::after(WaitLimits(Seconds(10), Seconds(120)));
    EXPECT_NO_THROW(transport.receive(2, Channel::data, bytes)->wait(limits));
  });
}

TEST(GlooLiveness, EverySurvivorNamesTheStoppedRankWhoeverItWaitsFor) {
  // Rank 0 waits for rank 1, 1 for 3 and 3 for 2, which is stopped.
  const auto codes = run_processes(4, [](Transport& transport) {
    if (transport.rank() == 2) ::raise(SIGSTOP);
    const std::array<int, 4> waits_for{1, 3, 0, 2};
    return expect_error(transport, waits_for[static_cast<std::size_t>(transport.rank())],
                        Deadline::after(WaitLimits(Seconds(8), Seconds(120))),
                        "no sign of life from rank 2 for 8 s");
  });
  EXPECT_THAT(codes, testing::ElementsAre(0, 0, -1, 0));
}

TEST(GlooLiveness, PatienceNamesTheRankThatKeepsAllOthersWaiting) {
  std::atomic<int> ended = 0;
  run_gloo_ranks(3, [&](Transport& transport) {
    if (transport.rank() == 2) {
      while (ended < 2) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    // Rank 0 waits for rank 1, which waits for rank 2.
    std::array<std::byte, 4> bytes{};
    const Seconds patience(transport.rank() == 0 ? 3 : 120);
    const auto limits = Deadline::after(WaitLimits(Seconds(4), patience));
    const Pending receive = transport.receive(transport.rank() + 1, Channel::data, bytes);
    const Error error = error_of([&] { receive->wait(limits); });
    EXPECT_THAT(error.what(), HasSubstr("waited 3 s for rank 2, which is alive"));
    EXPECT_THAT(error.what(), HasSubstr("(receive of 4 bytes from rank 1)"));
    ++ended;
  });
}

TEST(GlooLiveness, AKilledRankIsNamedWhileAProcessThatItForkedLives) {
  Shared child;
  const auto codes = run_processes(3, [&](Transport& transport) {
    if (transport.rank() == 1) {
      const pid_t forked = ::fork();
      if (forked == 0) {
        for (;;) ::pause();
      }
      *child = forked;
      ::raise(SIGKILL);
    }
    const int code = expect_error(transport, 1, soon(), "lost rank 1");
    return code != 0 || ::kill(*child, 0) == 0 ? code : 3;
  });
  EXPECT_THAT(codes, testing::ElementsAre(0, -1, 0));
  ASSERT_GT(*child, 0);
  ::kill(*child, SIGKILL);
}

TEST(GlooLiveness, AForkedChildLeavesTheConnectionAlone) {
  std::atomic<int> arrived = 0;
  run_gloo_ranks(2, [&](Transport& transport) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    if (transport.rank() == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        transport.abandon("of no concern to the parent");
        transport.~Transport();
        ::_exit(7);
      }
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    std::array<std::byte, 4> in{};
    std::array<std::byte, 4> out{};
    const int peer = 1 - transport.rank();
    const Pending send = transport.send(peer, Channel::data, out);
    EXPECT_NO_THROW(transport.receive(peer, Channel::data, in)->wait(soon()));
    EXPECT_NO_THROW(send->wait(soon()));
  });
}

TEST(GlooLiveness, AMessageThatHasArrivedIsNotLostWhenItsSenderLeaves) {
  run_gloo_ranks(2, [](Transport& transport) {
    auto bytes = pattern(100'000, 5);
    if (transport.rank() == 1) {
      transport.send(0, Channel::data, bytes)->wait(soon());
      return;
    }
    std::vector<std::byte> got(bytes.size());
    std::array<std::byte, 1> never{};
    const Pending sent = transport.receive(1, Channel::data, got);
    const Pending unsent = transport.receive(1, Channel::header, never);
    // From here on it is known that rank 1 has left.
    EXPECT_THAT(error_of([&] { unsent->wait(soon()); }).what(), HasSubstr("rank 1 has left"));
    EXPECT_NO_THROW(sent->wait(soon()));
    EXPECT_TRUE(got == bytes);
  });
}

TEST(GlooLiveness, TracksAreIndependent) {
  run_gloo_ranks(2, [](Transport& transport) { use_tracks(transport); });
}

int threads_of_this_process() {
  int count = 0;
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* one = ::readdir(tasks)) count += one->d_name[0] != '.' ? 1 : 0;
  ::closedir(tasks);
  return count;
}

TEST(GlooLiveness, TheNumberOfThreadsDoesNotGrowWithTheNumberOfPeers) {
  constexpr int world = 6;
  const int before = threads_of_this_process();
  std::atomic<int> connected = 0;
  std::atomic<int> counted = 0;
  run_gloo_ranks(world, [&](Transport& transport) {
    ++connected;
    if (transport.rank() == 0) {
      while (connected < world) std::this_thread::yield();
      // Per rank: the test's own thread, Gloo's and that of the lifelines.
      EXPECT_LE(threads_of_this_process() - before, 3 * world);
    }
    ++counted;
    while (counted < world) std::this_thread::sleep_for(milliseconds(1));
  });
}

}  // namespace
}  // namespace thinreduce::gloo_liveness_test

// Ranks that leave, give up, stay silent or are killed. Ranks are forked processes if one is
// killed, otherwise threads of this process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"

namespace thinreduce::gloo_failures_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(GlooFailures, AWaitEndsAtItsDeadlineAndSaysForWhom) {
  run_gloo_ranks(3, [](Transport& transport) {
    if (transport.rank() == 0) {
      std::vector<std::byte> bytes(4096);
      const Pending receive = transport.receive(2, Channel::data, bytes);
      const auto limits = Deadline::after(WaitLimits(Seconds(20), Seconds(0.5)));
      const Error error = error_of([&] { receive->wait(limits); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(std::string(error.what()),
                "rank 0: waited 0.5 s for rank 2, which is alive but does not take part (receive "
                "of 4096 bytes from rank 2); raise patience if it needs longer");
      // The error is final.
      EXPECT_EQ(error_of([&] { (void)transport.receive(1, Channel::data, bytes); }).what(),
                std::string(error.what()));
    } else {
      // No rank sends; the error names the rank that gave up.
      std::vector<std::byte> bytes(1);
      const Pending receive = transport.receive(3 - transport.rank(), Channel::data, bytes);
      const Error error = error_of([&] { receive->wait(soon()); });
      EXPECT_EQ(error.code(), ErrorCode::lost_peer);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 gave up: waited 0.5 s for rank 2"));
    }
  });
}

TEST(GlooFailures, AbandonEndsEveryWait) {
  run_gloo_ranks(4, [](Transport& transport) {
    std::vector<std::byte> bytes(100);
    if (transport.rank() == 1) {
      const Pending receive = transport.receive(0, Channel::data, bytes);
      std::this_thread::sleep_for(milliseconds(100));
      transport.abandon("tensor 7 is not finite");
      EXPECT_THAT(error_of([&] { receive->wait(soon()); }).what(),
                  HasSubstr("rank 1 gave up: tensor 7 is not finite"));
      return;
    }
    // Two ranks wait for each other, the third for rank 1.
    const int peer = transport.rank() == 0 ? 1 : 5 - transport.rank();
    const Pending receive = transport.receive(peer, Channel::data, bytes);
    const Error error = error_of([&] { receive->wait(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_STREQ(error.what(), "rank 1 gave up: tensor 7 is not finite");
  });
}

TEST(GlooFailures, AbandonEndsANativeSum) {
  std::atomic<int> ended = 0;
  run_gloo_ranks(4, [&](Transport& transport) {
    if (transport.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      transport.abandon("no gradient");
      // Its connections stay open, so only the notice can end the sums.
      for (int i = 0; i < 6000 && ended < 3; ++i) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    std::vector<float> values(1 << 20);
    const Error error = error_of([&] { transport.native_sum(values); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_STREQ(error.what(), "rank 1 gave up: no gradient");
    ++ended;
  });
}

TEST(GlooFailures, AWriteToALostPeerDoesNotEndTheProcess) {
  run_gloo_ranks(2, [](Transport& /*transport*/) {});
  struct sigaction action {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &action), 0);
  EXPECT_TRUE(action.sa_handler == SIG_IGN);
}

TEST(GlooFailures, AbandonGetsThroughBehindCancelledMessages) {
  run_gloo_ranks(2, [](Transport& transport) {
    std::vector<std::byte> bytes(8 << 20);
    if (transport.rank() == 0) {
      {
        const Pending cancelled_send = transport.send(1, Channel::data, bytes);
        std::vector<std::byte> more(8 << 20);
        const Pending cancelled_receive = transport.receive(1, Channel::data, more);
        std::this_thread::sleep_for(milliseconds(100));
      }
      transport.abandon("changed my mind");
    } else {
      std::this_thread::sleep_for(milliseconds(200));
      std::vector<std::byte> more(8 << 20);
      const auto error = error_of([&] {
        const Pending receive = transport.receive(0, Channel::data, bytes);
        const Pending send = transport.send(0, Channel::data, more);
        receive->wait(soon());
        send->wait(soon());
      });
      EXPECT_STREQ(error.what(), "rank 0 gave up: changed my mind");
    }
  });
}

TEST(GlooFailures, ARankThatLeavesDoesNotDisturbTheOthers) {
  std::atomic<bool> left = false;
  run_gloo_ranks(3, [&](Transport& transport) {
    auto bytes = pattern(1000, transport.rank());
    if (transport.rank() == 2) {
      // Its last message arrives although it leaves at once.
      transport.send(0, Channel::data, bytes)->wait(soon());
      left = true;
      return;
    }
    std::vector<std::byte> got(1000);
    if (transport.rank() == 0) {
      const Pending receive = transport.receive(2, Channel::data, got);
      while (!left) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(500));
      receive->wait(soon());
      EXPECT_TRUE(got == pattern(1000, 2));
    } else {
      // Waits while rank 2 leaves.
      transport.receive(0, Channel::data, got)->wait(soon());
      EXPECT_TRUE(got == pattern(1000, 0));
    }
    if (transport.rank() == 0) transport.send(1, Channel::data, bytes)->wait(soon());
    for (int round = 0; round < 20; ++round) {
      const int peer = 1 - transport.rank();
      const Pending send = transport.send(peer, Channel::header, bytes);
      transport.receive(peer, Channel::header, got)->wait(soon());
      send->wait(soon());
    }
    // Operations with rank 2 itself fail.
    const Error error = error_of([&] { transport.receive(2, Channel::data, got)->wait(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("rank 2 has left"));
  });
}

TEST(GlooFailures, AWaitForARankThatLeavesEnds) {
  std::atomic<bool> started = false;
  run_gloo_ranks(2, [&](Transport& transport) {
    if (transport.rank() == 1) {
      while (!started) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    std::vector<std::byte> bytes(64);
    const Pending send = transport.send(1, Channel::data, bytes);
    std::vector<std::byte> got(1);
    const Pending receive = transport.receive(1, Channel::header, got);
    started = true;
    for (const Pending* one : {&receive, &send}) {
      const Error error = error_of([&] { (*one)->wait(soon()); });
      EXPECT_EQ(error.code(), ErrorCode::lost_peer);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has left"));
    }
  });
}

TEST(GlooFailures, ASendThatIsCutInTheMiddleEnds) {
  std::atomic<bool> started = false;
  run_gloo_ranks(2, [&](Transport& transport) {
    // Larger than the socket buffers, so that it stays unfinished.
    std::vector<std::byte> bytes(64 << 20);
    if (transport.rank() == 1) {
      while (!started) std::this_thread::sleep_for(milliseconds(1));
      // Starts to receive, cancels, and leaves.
      (void)transport.receive(0, Channel::data, bytes);
      return;
    }
    const Pending send = transport.send(1, Channel::data, bytes);
    started = true;
    const Error error = error_of([&] { send->wait(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has left"));
  });
}

// The operation of the surviving ranks while rank 2 of 4 is killed.
enum class Victim { idle, midway_in_large_messages, in_native_sum };

class GlooKill : public testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(When, GlooKill,
                         testing::Values(Victim::idle, Victim::midway_in_large_messages,
                                         Victim::in_native_sum));

// Exit code 0 means that the error named the victim.
int survive(Transport& transport, Victim victim) {
  const int peer = transport.rank() == 0 ? 2 : transport.rank() == 1 ? 3 : 1;
  std::string said = "nothing thrown";
  try {
    std::vector<std::byte> out(victim == Victim::idle ? 10 : 64 << 20);
    std::vector<std::byte> in(out.size());
    if (victim == Victim::in_native_sum) {
      std::vector<float> values(1 << 20);
      transport.native_sum(values);
    } else {
      const Pending receive = transport.receive(peer, Channel::data, in);
      const Pending send = transport.send(2, Channel::data, out);
      receive->wait(soon());
    }
  } catch (const Error& e) {
    said = e.what();
    if (e.code() == ErrorCode::lost_peer && said.find("lost rank 2") != std::string::npos) {
      return 0;
    }
  }
  fmt::print(stderr, "rank {}: {}\n", transport.rank(), said);
  return 1;
}

TEST_P(GlooKill, EverySurvivorNamesTheVictim) {
  const std::uint16_t port = free_port();
  constexpr int world = 4;
  std::array<pid_t, world> children{};
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int code = 2;
      try {
        const auto transport = connect_gloo(options_for(rank, world, port));
        if (rank == 2) {
          // Has started to receive from rank 0 among the large messages.
          std::vector<std::byte> in(64 << 20);
          Pending receive;
          std::this_thread::sleep_for(milliseconds(300));  // so that the others wait by then
          if (GetParam() == Victim::midway_in_large_messages) {
            receive = transport->receive(0, Channel::data, in);
            std::this_thread::sleep_for(milliseconds(2));
          }
          ::kill(::getpid(), SIGKILL);
        }
        code = survive(*transport, GetParam());
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", rank, e.what());
      }
      std::_Exit(code);
    }
    children[static_cast<std::size_t>(rank)] = child;
  }
  for (int rank = 0; rank < world; ++rank) {
    int status = 0;
    ASSERT_GT(::waitpid(children[static_cast<std::size_t>(rank)], &status, 0), 0);
    if (rank == 2) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace thinreduce::gloo_failures_test

// Ranks as forked processes where one is killed, as threads of this process otherwise.
#include "thinreduce/transport/gloo.h"

#include <fmt/format.h>
#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

GlooOptions options_for(int rank, int world, std::uint16_t port) {
  GlooOptions options;
  options.rank = rank;
  options.world = world;
  options.master_port = port;
  return options;
}

Deadline soon() {
  return Deadline::after(Seconds(20));
}

// Runs `body` on each rank of a world, each on its own thread.
void run_ranks(int world, const std::function<void(Transport&)>& body) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto transport = connect_gloo(options_for(rank, world, port));
        EXPECT_EQ(transport->rank(), rank);
        EXPECT_EQ(transport->size(), world);
        body(*transport);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 97) & 255);
  }
  return bytes;
}

// What `action` throws; fails the test when it throws nothing.
Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "not an Error: " << e.what();
    return Error(ErrorCode::bad_frame, "");
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::bad_frame, "");
}

class GlooWorld : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GlooWorld, testing::Values(1, 2, 3, 4));

TEST_P(GlooWorld, EveryPairExchangesEverySizeOnEveryChannel) {
  constexpr std::array<std::size_t, 6> sizes = {0, 1, 4097, 0, 65537, 8 << 20};
  constexpr std::array channels = {Channel::data, Channel::header, Channel::agreement};
  run_ranks(GetParam(), [&](Transport& transport) {
    const int me = transport.rank();
    struct Incoming {
      std::vector<std::byte> bytes;
      std::vector<std::byte> expected;
    };
    std::vector<std::vector<std::byte>> outgoing;
    std::vector<std::unique_ptr<Incoming>> incoming;
    std::vector<Pending> pending;
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == me) continue;
      for (const Channel channel : channels) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          // 8 MB once a pair is enough.
          const std::size_t size = channel == Channel::data ? sizes[i] : sizes[i] % (1 << 20);
          const auto seed = [&](int from, int to) {
            return from * 1000 + to * 100 + static_cast<int>(channel) * 10 + static_cast<int>(i);
          };
          outgoing.push_back(pattern(size, seed(me, peer)));
          incoming.push_back(std::make_unique<Incoming>());
          incoming.back()->bytes.resize(size);
          incoming.back()->expected = pattern(size, seed(peer, me));
          pending.push_back(transport.send(peer, channel, outgoing.back()));
          pending.push_back(transport.receive(peer, channel, incoming.back()->bytes));
        }
      }
    }
    for (const Pending& one : pending) one->wait(soon());
    for (const auto& one : incoming) EXPECT_TRUE(one->bytes == one->expected);
    const auto traffic = transport.total_traffic();
    EXPECT_EQ(traffic.messages_sent, outgoing.size());
    EXPECT_EQ(traffic.bytes_sent, traffic.bytes_received);
  });
}

TEST_P(GlooWorld, NativeSumAddsUp) {
  run_ranks(GetParam(), [](Transport& transport) {
    for (const std::size_t count : {0, 1, 7, 100003}) {
      std::vector<float> values(count);
      std::iota(values.begin(), values.end(), static_cast<float>(transport.rank()));
      ASSERT_TRUE(transport.native_sum(values));
      const int world = transport.size();
      for (std::size_t i = 0; i < count; i += 101) {
        EXPECT_EQ(values[i], static_cast<float>(world * static_cast<int>(i)) +
                                 static_cast<float>(world * (world - 1) / 2));
      }
    }
  });
}

TEST(Gloo, KeepsOrderWithinAChannelWhoeverIsFirst) {
  for (const bool receiver_first : {false, true}) {
    run_ranks(2, [&](Transport& transport) {
      constexpr int count = 200;
      std::vector<int> numbers(count, -1);
      std::vector<Pending> pending;
      const bool sends = transport.rank() == 0;
      if (sends) std::iota(numbers.begin(), numbers.end(), 0);
      if (sends == receiver_first) std::this_thread::sleep_for(milliseconds(50));
      for (int& number : numbers) {
        auto bytes = std::as_writable_bytes(std::span(&number, 1));
        pending.push_back(sends ? transport.send(1, Channel::data, bytes)
                                : transport.receive(0, Channel::data, bytes));
      }
      for (const Pending& one : pending) one->wait(soon());
      for (int i = 0; i < count; ++i) EXPECT_EQ(numbers[static_cast<std::size_t>(i)], i);
    });
  }
}

TEST(Gloo, ChannelsDoNotWaitForEachOther) {
  run_ranks(2, [](Transport& transport) {
    const int peer = 1 - transport.rank();
    auto data = pattern(1 << 20, transport.rank());
    auto header = pattern(10, transport.rank() + 5);
    // Both send data first, but receive it last.
    const Pending first = transport.send(peer, Channel::data, data);
    const Pending second = transport.send(peer, Channel::header, header);
    std::vector<std::byte> got(10);
    transport.receive(peer, Channel::header, got)->wait(soon());
    EXPECT_TRUE(got == pattern(10, peer + 5));
    got.resize(1 << 20);
    transport.receive(peer, Channel::data, got)->wait(soon());
    EXPECT_TRUE(got == pattern(1 << 20, peer));
    first->wait(soon());
    second->wait(soon());
  });
}

TEST(Gloo, MeetsThroughSomebodyElsesStore) {
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> threads;
  std::atomic<int> connected = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = connect_gloo(options_for(rank, 3, 1), store);
      std::vector<float> one(1, 1.0f);
      EXPECT_TRUE(transport->native_sum(one));
      if (one[0] == 3.0f) ++connected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected, 3);
}

TEST(Gloo, AWaitEndsAtItsDeadlineAndSaysForWhom) {
  run_ranks(3, [](Transport& transport) {
    if (transport.rank() == 0) {
      std::vector<std::byte> bytes(4096);
      const Pending receive = transport.receive(2, Channel::data, bytes);
      const Error error = error_of([&] { receive->wait(Deadline::after(Seconds(0.5))); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(std::string(error.what()),
                "rank 0: no answer from rank 2 within 0.5 s (receive of 4096 bytes)");
      // It stays so.
      EXPECT_EQ(error_of([&] { (void)transport.receive(1, Channel::data, bytes); }).what(),
                std::string(error.what()));
    } else {
      // Nobody sends; the one who gave up is named.
      std::vector<std::byte> bytes(1);
      const Pending receive = transport.receive(3 - transport.rank(), Channel::data, bytes);
      const Error error = error_of([&] { receive->wait(soon()); });
      EXPECT_EQ(error.code(), ErrorCode::lost_peer);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 gave up: no answer from rank 2 within 0.5 s"));
    }
  });
}

TEST(Gloo, AbandonEndsEveryWait) {
  run_ranks(4, [](Transport& transport) {
    std::vector<std::byte> bytes(100);
    if (transport.rank() == 1) {
      const Pending receive = transport.receive(0, Channel::data, bytes);
      std::this_thread::sleep_for(milliseconds(100));
      transport.abandon("tensor 7 is not finite");
      EXPECT_THAT(error_of([&] { receive->wait(soon()); }).what(),
                  HasSubstr("rank 1 gave up: tensor 7 is not finite"));
      return;
    }
    // Two wait for each other, the third for rank 1.
    const int peer = transport.rank() == 0 ? 1 : 5 - transport.rank();
    const Pending receive = transport.receive(peer, Channel::data, bytes);
    const auto began = Clock::now();
    const Error error = error_of([&] { receive->wait(soon()); });
    EXPECT_LT(Clock::now() - began, seconds(5));
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_STREQ(error.what(), "rank 1 gave up: tensor 7 is not finite");
  });
}

TEST(Gloo, AbandonEndsANativeSum) {
  std::atomic<int> ended = 0;
  run_ranks(4, [&](Transport& transport) {
    if (transport.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      transport.abandon("no gradient");
      // Its connections stay open, so that only the notice can end the sums.
      for (int i = 0; i < 1000 && ended < 3; ++i) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    std::vector<float> values(1 << 20);
    const auto began = Clock::now();
    const Error error = error_of([&] { transport.native_sum(values); });
    EXPECT_LT(Clock::now() - began, seconds(5));
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_STREQ(error.what(), "rank 1 gave up: no gradient");
    ++ended;
  });
}

TEST(Gloo, AWriteToALostPeerDoesNotEndTheProcess) {
  run_ranks(2, [](Transport& /*transport*/) {});
  struct sigaction action {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &action), 0);
  EXPECT_TRUE(action.sa_handler == SIG_IGN);
}

TEST(Gloo, AbandonGetsThroughBehindCancelledMessages) {
  run_ranks(2, [](Transport& transport) {
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

TEST(Gloo, ARankThatLeavesDoesNotDisturbTheOthers) {
  std::atomic<bool> left = false;
  run_ranks(3, [&](Transport& transport) {
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
    // But with rank 2 itself nothing works any more.
    const Error error = error_of([&] { transport.receive(2, Channel::data, got)->wait(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_THAT(error.what(), HasSubstr("rank 2 has left"));
  });
}

TEST(Gloo, AWaitForARankThatLeavesEnds) {
  std::atomic<bool> started = false;
  run_ranks(2, [&](Transport& transport) {
    if (transport.rank() == 1) {
      while (!started) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    std::vector<std::byte> bytes(64);
    const Pending send = transport.send(1, Channel::data, bytes);
    std::vector<std::byte> got(1);
    const Pending receive = transport.receive(1, Channel::header, got);
    started = true;
    const auto began = Clock::now();
    for (const Pending* one : {&receive, &send}) {
      const Error error = error_of([&] { (*one)->wait(soon()); });
      EXPECT_EQ(error.code(), ErrorCode::lost_peer);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has left"));
    }
    EXPECT_LT(Clock::now() - began, seconds(5));
  });
}

TEST(Gloo, ASendThatIsCutInTheMiddleEnds) {
  std::atomic<bool> started = false;
  run_ranks(2, [&](Transport& transport) {
    // Larger than the socket buffers, so that it stays unfinished.
    std::vector<std::byte> bytes(64 << 20);
    if (transport.rank() == 1) {
      while (!started) std::this_thread::sleep_for(milliseconds(1));
      // Begins to receive, thinks better of it, and leaves.
      (void)transport.receive(0, Channel::data, bytes);
      return;
    }
    const Pending send = transport.send(1, Channel::data, bytes);
    started = true;
    const auto began = Clock::now();
    const Error error = error_of([&] { send->wait(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::lost_peer);
    EXPECT_THAT(error.what(),
                testing::AnyOf(HasSubstr("rank 1 has left"), HasSubstr("lost rank 1")));
    EXPECT_LT(Clock::now() - began, seconds(5));
  });
}

// What the surviving ranks do when rank 2 of 4 is killed.
enum class Victim { idle, midway_in_large_messages, in_native_sum };

class GlooKill : public testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(When, GlooKill,
                         testing::Values(Victim::idle, Victim::midway_in_large_messages,
                                         Victim::in_native_sum));

// Exit code 0: the error named the victim, in time.
int survive(Transport& transport, Victim victim) {
  const int peer = transport.rank() == 0 ? 2 : transport.rank() == 1 ? 3 : 1;
  const auto began = Clock::now();
  std::string said = "nothing thrown";
  try {
    std::vector<std::byte> out(victim == Victim::idle ? 10 : 64 << 20);
    std::vector<std::byte> in(out.size());
    const Deadline deadline = Deadline::after(Seconds(60));
    if (victim == Victim::in_native_sum) {
      std::vector<float> values(1 << 20);
      transport.native_sum(values);
    } else {
      const Pending receive = transport.receive(peer, Channel::data, in);
      const Pending send = transport.send(2, Channel::data, out);
      receive->wait(deadline);
    }
  } catch (const Error& e) {
    said = e.what();
    if (e.code() == ErrorCode::lost_peer && said.find("rank 2") != std::string::npos &&
        Clock::now() - began < seconds(10)) {
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
          // Has begun to receive from rank 0 in the midst of the large messages.
          std::vector<std::byte> in(64 << 20);
          Pending receive;
          std::this_thread::sleep_for(milliseconds(300));
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

TEST(GlooConnect, NobodyAnswers) {
  GlooOptions options = options_for(1, 2, free_port());
  options.connect_timeout = Seconds(0.5);
  const Error error = error_of([&] { (void)connect_gloo(options); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(),
              HasSubstr(fmt::format("rank 1: nobody answers at 127.0.0.1:{} after 0.5 s",
                                    options.master_port)));
}

TEST(GlooConnect, NamesTheRankThatNeverArrived) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([rank, port] {
      GlooOptions options = options_for(rank, 4, port);
      options.connect_timeout = Seconds(1);
      const Error error = error_of([&] { (void)connect_gloo(options); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}: ", rank)));
      EXPECT_THAT(error.what(), HasSubstr("ranks 2, 3 never arrived within 1 s"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooConnect, WorldSizesMustAgree) {
  const std::uint16_t port = free_port();
  std::thread other([port] {
    const Error error = error_of([&] { (void)connect_gloo(options_for(1, 3, port)); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("has world size 3, rank 0 has 2"));
  });
  GlooOptions options = options_for(0, 2, port);
  options.connect_timeout = Seconds(2);
  const Error error = error_of([&] { (void)connect_gloo(options); });
  other.join();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 never arrived"));
  EXPECT_THAT(error.what(), HasSubstr("has world size 3, rank 0 has 2"));
}

TEST(GlooConnect, UnknownInterfaceListsThoseThereAre) {
  gloo::rendezvous::HashStore store;
  GlooOptions options = options_for(0, 2, 1);
  options.interface = "nosuch0";
  const Error error = error_of([&] { (void)connect_gloo(options, store); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("\"nosuch0\""));
  EXPECT_THAT(error.what(), HasSubstr("lo"));
}

TEST(GlooConnect, RankMustBeInTheWorld) {
  const Error error = error_of([] { (void)connect_gloo(options_for(2, 2, 1)); });
  EXPECT_EQ(error.code(), ErrorCode::bad_input);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 is not in a world of 2"));
}

class GlooEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    set("RANK", "1");
    set("WORLD_SIZE", "4");
    set("MASTER_ADDR", "10.1.2.3");
    set("MASTER_PORT", "1234");
    set("THINREDUCE_INTERFACE", "eth7");
  }
  void TearDown() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "THINREDUCE_INTERFACE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static std::string complaint() {
    const Error error = error_of([] { (void)gloo_options_from_environment(); });
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
};

TEST_F(GlooEnvironment, IsRead) {
  const GlooOptions options = gloo_options_from_environment();
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world, 4);
  EXPECT_EQ(options.master_addr, "10.1.2.3");
  EXPECT_EQ(options.master_port, 1234);
  EXPECT_EQ(options.interface, "eth7");
}

TEST_F(GlooEnvironment, SaysWhatIsWrong) {
  set("RANK", "4");
  EXPECT_THAT(complaint(), HasSubstr("RANK is \"4\"; expected this rank, 0 to 3"));
  set("RANK", "1x");
  EXPECT_THAT(complaint(), HasSubstr("RANK is \"1x\""));
  set("RANK", "1");
  set("WORLD_SIZE", "0");
  EXPECT_THAT(complaint(), HasSubstr("WORLD_SIZE is \"0\""));
  set("WORLD_SIZE", "4");
  set("MASTER_PORT", "65536");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_PORT is \"65536\""));
  ::unsetenv("MASTER_PORT");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_PORT is not set"));
  ::unsetenv("MASTER_ADDR");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_ADDR is not set"));
}

}  // namespace
}  // namespace thinreduce

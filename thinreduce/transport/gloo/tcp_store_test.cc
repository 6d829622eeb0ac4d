#include "thinreduce/transport/gloo/tcp_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/gloo/tcp_store_server.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TcpStoreOptions options_for(int rank, int world, std::uint16_t port, double timeout = 20) {
  TcpStoreOptions options;
  options.rank = rank;
  options.world = world;
  options.master_port = port;
  options.timeout = Seconds(timeout);
  return options;
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::bad_frame, "");
}

// A connection that may send anything.
Socket stranger(std::uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  // Ends a test of a server that does not answer.
  const timeval patience{5, 0};
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return socket;
}

void say(const Socket& socket, const std::string& bytes) {
  // The server may have closed the connection by now, which is allowed.
  [[maybe_unused]] const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Returns whether the server closes the connection; skips what it sends before that.
bool is_disconnected(const Socket& socket) {
  char bytes[64];
  for (;;) {
    const auto got = ::recv(socket.fd(), bytes, sizeof(bytes), 0);
    if (got <= 0) return got == 0 || errno == ECONNRESET;
  }
}

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string hello(std::uint32_t rank, std::uint32_t world) {
  return store_protocol::kMagic + raw(rank) + raw(world);
}

std::string request(std::uint8_t what, std::uint16_t key_length, std::uint32_t value_length,
                    const std::string& rest) {
  return raw(what) + raw(key_length) + raw(value_length) + rest;
}

TEST(TcpStore, ValuesReachOtherRanks) {
  const std::uint16_t port = free_port();
  TcpStore zero(options_for(0, 2, port));
  TcpStore one(options_for(1, 2, port));
  const std::vector<char> large(300'000, 'x');
  one.set("large", large);
  one.set("empty", {});
  EXPECT_EQ(zero.get("large"), large);
  EXPECT_TRUE(zero.get("empty").empty());
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    zero.set("late", {'l'});
  });
  EXPECT_EQ(one.get("late"), std::vector<char>{'l'});
  later.join();
  one.wait({"large", "late"}, milliseconds(1));
}

TEST(TcpStore, WaitsEndAtTheirDeadline) {
  TcpStore zero(options_for(0, 2, free_port(), 1));
  const auto began = Clock::now();
  EXPECT_EQ(error_of([&] { zero.wait({"nothing"}, milliseconds(100)); }).code(),
            ErrorCode::timeout);
  EXPECT_LT(Clock::now() - began, milliseconds(800));
  const Error error = error_of([&] { (void)zero.get("nothing"); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("no rank stored \"nothing\" within 1 s"));
  EXPECT_LT(Clock::now() - began, seconds(5));
}

TEST(TcpStore, ARankMayComeBeforeRankZero) {
  const std::uint16_t port = free_port();
  std::thread early([port] {
    TcpStore one(options_for(1, 2, port));
    one.set("here", {'1'});
  });
  std::this_thread::sleep_for(milliseconds(300));
  TcpStore zero(options_for(0, 2, port));
  EXPECT_EQ(zero.get("here"), std::vector<char>{'1'});
  early.join();
}

TEST(TcpStore, NobodyAnswers) {
  // 192.0.2.0/24 is reserved for documentation: packets to it are dropped or refused.
  for (const char* address : {"127.0.0.1", "192.0.2.1", "no.such.host.invalid"}) {
    TcpStoreOptions options = options_for(1, 2, free_port(), 0.5);
    options.master_addr = address;
    const auto began = Clock::now();
    const Error error = error_of([&] { TcpStore store(options); });
    // A name lookup takes as long as the resolver's own timeout.
    EXPECT_LT(Clock::now() - began, seconds(30));
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                HasSubstr(fmt::format("rank 1: no server answers at {}:{} after 0.5 s", address,
                                      options.master_port)));
    EXPECT_THAT(error.what(), HasSubstr("is rank 0 running there and is the port open?"));
  }
}

TEST(TcpStore, SomethingElseAnswers) {
  // Listens, accepts, and sends nothing.
  const Socket listener(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::listen(listener.fd(), 10), 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  const auto began = Clock::now();
  const Error error =
      error_of([&] { TcpStore store(options_for(1, 2, ntohs(address.sin_port), 0.5)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_LT(Clock::now() - began, seconds(5));
}

TEST(TcpStore, PortTaken) {
  const std::uint16_t port = free_port();
  TcpStore store(options_for(0, 2, port));
  const Error error = error_of([&] { TcpStore other(options_for(0, 2, port)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("port {}", port)));
}

TEST(TcpStore, TurnsAwayRanksThatDoNotBelong) {
  const std::uint16_t port = free_port();
  TcpStore zero(options_for(0, 3, port));
  auto one = std::make_unique<TcpStore>(options_for(1, 3, port));
  const Error world = error_of([&] { TcpStore store(options_for(2, 4, port)); });
  EXPECT_EQ(world.code(), ErrorCode::mismatch);
  EXPECT_THAT(world.what(), HasSubstr("has world size 4, rank 0 has 3"));
  const Error twice = error_of([&] { TcpStore store(options_for(1, 3, port)); });
  EXPECT_EQ(twice.code(), ErrorCode::mismatch);
  EXPECT_THAT(twice.what(), HasSubstr("rank 1 at"));
  EXPECT_THAT(twice.what(), HasSubstr("has already joined"));
  EXPECT_THAT(zero.rejected(), HasSubstr("has world size 4, rank 0 has 3; rank 1 at"));
  // The first client of that rank is not disturbed, and may reconnect after it has left.
  one->set("still", {'1'});
  one.reset();
  std::this_thread::sleep_for(milliseconds(50));
  TcpStore again(options_for(1, 3, port));
  EXPECT_EQ(again.get("still"), std::vector<char>{'1'});
}

TEST(TcpStore, RankZeroLeavesEarly) {
  const std::uint16_t port = free_port();
  auto zero = std::make_unique<TcpStore>(options_for(0, 2, port));
  TcpStore one(options_for(1, 2, port));
  zero.reset();
  const Error error = error_of([&] { (void)one.get("anything"); });
  EXPECT_EQ(error.code(), ErrorCode::lost_peer);
  EXPECT_THAT(error.what(), HasSubstr("rank 1: rank 0 left"));
}

TEST(TcpStore, DisconnectsWhoDoesNotKeepToTheProtocol) {
  const std::uint16_t port = free_port();
  TcpStoreServer server(2, port);
  using namespace store_protocol;
  const std::vector<std::string> offences = {
      "GET / HTTP/1.1\r\n\r\n",
      hello(7, 2),
      hello(0xffffffff, 2),
      hello(1, 2) + request(9, 1, 0, "k"),
      hello(1, 2) + request(kSet, 0, 1, "v"),
      hello(1, 2) + request(kSet, kMaxKey + 1, 0, ""),
      hello(1, 2) + request(kSet, 1, kMaxValue + 1, ""),
      hello(1, 2) + request(kSet, 1, 0xffffffff, ""),
      hello(1, 2) + request(kGet, 1, 1, "kv"),
      hello(1, 2).substr(0, 9),
  };
  for (std::size_t i = 0; i < offences.size(); ++i) {
    const Socket socket = stranger(port);
    say(socket, offences[i]);
    // The last one is the beginning of a hello: it ends when the client closes.
    if (i + 1 == offences.size()) ::shutdown(socket.fd(), SHUT_WR);
    EXPECT_TRUE(is_disconnected(socket)) << "offence " << i;
  }
  // More values than any world needs.
  const Socket greedy = stranger(port);
  say(greedy, hello(1, 2));
  for (int i = 0; i < 1000; ++i) say(greedy, request(kSet, 4, 0, fmt::format("{:04}", i)));
  EXPECT_TRUE(is_disconnected(greedy));
}

TEST(TcpStore, GarbageDoesNotKeepTheRanksFromMeeting) {
  const std::uint16_t port = free_port();
  std::atomic<bool> stop = false;
  // More silent connections than the server keeps, and random bytes, some after a valid hello.
  std::thread attacker([&] {
    std::mt19937 random(7);
    std::vector<Socket> silent;
    while (!stop) {
      Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        std::this_thread::sleep_for(milliseconds(1));
        continue;
      }
      std::string bytes = random() % 2 == 0 ? hello(static_cast<std::uint32_t>(random()), 3) : "";
      bytes.resize(bytes.size() + random() % 4096);
      for (char& byte : bytes) {
        if (byte == 0) byte = static_cast<char>(random());
      }
      if (random() % 4 != 0) say(socket, bytes);
      silent.push_back(std::move(socket));
      if (silent.size() > 200) silent.erase(silent.begin());
    }
  });
  std::vector<std::thread> ranks;
  std::atomic<int> sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        std::this_thread::sleep_for(milliseconds(100 * rank));
        GlooOptions options;
        options.rank = rank;
        options.world = 3;
        options.master_port = port;
        const auto transport = connect_gloo(options);
        std::vector<float> one(1, 1.0f);
        transport->native_sum(one);
        sum += static_cast<int>(one[0]);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  stop = true;
  attacker.join();
  EXPECT_EQ(sum, 9);
}

}  // namespace
}  // namespace thinreduce

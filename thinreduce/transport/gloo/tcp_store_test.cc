#include "thinreduce/transport/gloo/tcp_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "thinreduce/transport/gloo/tcp_store_server.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce::tcp_store_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TcpStoreOptions store_for(int rank, int world, std::uint16_t port) {
  return {.rank = rank, .world = world, .master_addr = "127.0.0.1", .master_port = port};
}

Deadline in_seconds(double count) {
  return Deadline::after(Seconds(count));
}

// Long enough for a busy machine.
Deadline later() {
  return in_seconds(60);
}

std::vector<char> bytes(const std::string& text) {
  return {text.begin(), text.end()};
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
  const timeval patience{60, 0};
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

std::string request(std::uint8_t kind, std::uint16_t topic_length, std::uint32_t value_length,
                    const std::string& rest) {
  return raw(kind) + raw(topic_length) + raw(value_length) + rest;
}

TEST(TcpStore, ValuesReachOtherRanks) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port), later());
  TcpStore one(store_for(1, 2, port), later());
  const std::vector<char> large(300'000, 'x');
  one.post("large", large);
  one.post("empty", {});
  zero.post("large", bytes("another"));
  EXPECT_EQ(zero.read(1, "large", later()), large);
  EXPECT_EQ(one.read(0, "large", later()), bytes("another"));
  EXPECT_EQ(zero.read(1, "empty", later()), bytes(""));
  std::thread poster([&] {
    std::this_thread::sleep_for(milliseconds(100));
    zero.post("late", bytes("l"));
  });
  EXPECT_EQ(one.read(0, "late", later()), bytes("l"));
  poster.join();
}

TEST(TcpStore, ReadsEndAtTheirDeadline) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port), later());
  TcpStore one(store_for(1, 2, port), later());
  EXPECT_EQ(zero.read(1, "nothing", in_seconds(0.05)), std::nullopt);
  EXPECT_EQ(one.read(0, "nothing", in_seconds(0.05)), std::nullopt);
  EXPECT_EQ(one.read(0, "nothing", in_seconds(0)), std::nullopt);
  // The store works afterwards.
  zero.post("nothing", bytes("now"));
  EXPECT_EQ(one.read(0, "nothing", later()), bytes("now"));
}

TEST(TcpStore, ARankMayComeBeforeRankZero) {
  const std::uint16_t port = free_port();
  std::thread early([port] {
    TcpStore one(store_for(1, 2, port), later());
    one.post("here", bytes("1"));
  });
  std::this_thread::sleep_for(milliseconds(300));
  TcpStore zero(store_for(0, 2, port), later());
  EXPECT_EQ(zero.read(1, "here", later()), bytes("1"));
  early.join();
}

TEST(TcpStore, NobodyAnswers) {
  // 192.0.2.0/24 is reserved for documentation: packets to it are dropped or refused.
  for (const char* address : {"127.0.0.1", "192.0.2.1", "no.such.host.invalid"}) {
    TcpStoreOptions options = store_for(1, 2, free_port());
    options.master_addr = address;
    const Error error = error_of([&] { TcpStore store(options, in_seconds(0.5)); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                HasSubstr(fmt::format("rank 1: no server answers at {}:{} after 0.5 s", address,
                                      options.master_port)));
    EXPECT_THAT(error.what(), HasSubstr("is rank 0 running there and is the port open?"));
  }
}

TEST(TcpStore, SomethingElseAnswers) {
  // Listens, and sends nothing.
  int why = 0;
  SocketAddress loopback = any_address(AF_INET);
  const Socket listener = listen_at(loopback, why);
  const Error error = error_of(
      [&] { TcpStore store(store_for(1, 2, own_address(listener).port()), in_seconds(0.5)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1: no answer from rank 0 at 127.0.0.1:"));
}

TEST(TcpStore, PortTaken) {
  const std::uint16_t port = free_port();
  TcpStore store(store_for(0, 2, port), later());
  const Error error = error_of([&] { TcpStore other(store_for(0, 2, port), later()); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("port {}", port)));
}

TEST(TcpStore, ListensAtTheAddressOfTheMasterAlone) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port), later());
  // Every address 127.x.x.x is this machine's.
  TcpStoreOptions elsewhere = store_for(1, 2, port);
  elsewhere.master_addr = "127.0.0.2";
  const Error error = error_of([&] { TcpStore one(elsewhere, in_seconds(0.5)); });
  EXPECT_THAT(error.what(), HasSubstr("no server answers at 127.0.0.2"));
  TcpStore one(store_for(1, 2, port), later());
}

TEST(TcpStore, TurnsAwayRanksThatDoNotBelong) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 3, port), later());
  const auto rejection = [&](int rank, int world) {
    const Error error = error_of([&] { TcpStore store(store_for(rank, world, port), later()); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(zero.remark(), HasSubstr("rejected: "));
    return std::string(error.what());
  };
  auto one = std::make_unique<TcpStore>(store_for(1, 3, port), later());
  EXPECT_THAT(rejection(2, 4), HasSubstr("has world size 4, rank 0 has 3"));
  // Both addresses are named.
  const auto twice =
      testing::ContainsRegex("rank 1 at 127.0.0.1:[0-9]+ has already joined from 127.0.0.1:[0-9]+");
  EXPECT_THAT(rejection(1, 3), twice);
  EXPECT_THAT(zero.remark(), twice);
  // The first client of that rank is not disturbed.
  one->post("still", bytes("1"));
  EXPECT_EQ(zero.read(1, "still", later()), bytes("1"));
  // Its number stays taken after it has left.
  one.reset();
  EXPECT_THAT(rejection(1, 3), twice);
}

TEST(TcpStore, AValueIsPostedOnce) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port), later());
  TcpStore one(store_for(1, 2, port), later());
  one.post("address", bytes("first"));
  const Error error = error_of([&] { one.post("address", bytes("second")); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("has already posted \"address\""));
  EXPECT_EQ(zero.read(1, "address", later()), bytes("first"));
}

TEST(TcpStore, NobodyElseIsRankZero) {
  const std::uint16_t port = free_port();
  TcpStoreServer server(2, "127.0.0.1", port);
  const Socket impostor = stranger(port);
  say(impostor, hello(0, 2));
  EXPECT_TRUE(is_disconnected(impostor));
  EXPECT_THAT(server.remark(), HasSubstr("a second rank 0 connected from 127.0.0.1"));
}

TEST(TcpStore, RankZeroLeavesEarly) {
  const std::uint16_t port = free_port();
  auto zero = std::make_unique<TcpStore>(store_for(0, 2, port), later());
  TcpStore one(store_for(1, 2, port), later());
  zero.reset();
  const Error error = error_of([&] { (void)one.read(0, "anything", later()); });
  EXPECT_EQ(error.code(), ErrorCode::lost_peer);
  EXPECT_THAT(error.what(), HasSubstr("rank 1: rank 0 left"));
}

TEST(TcpStore, RankZeroWaitsUntilTheOthersHaveRead) {
  const std::uint16_t port = free_port();
  auto zero = std::make_unique<TcpStore>(store_for(0, 2, port), later());
  TcpStore one(store_for(1, 2, port), later());
  std::thread leaving([&] {
    zero->post("verdict", bytes("all is well"));
    zero->finish(in_seconds(1));
    zero.reset();
  });
  EXPECT_EQ(one.read(0, "verdict", later()), bytes("all is well"));
  leaving.join();
}

TEST(TcpStore, DisconnectsWhoDoesNotKeepToTheProtocol) {
  const std::uint16_t port = free_port();
  TcpStoreServer server(20, "127.0.0.1", port);
  using namespace store_protocol;
  // Each claims another rank, because a number can be taken once.
  std::uint32_t rank = 0;
  const auto greeting = [&] { return hello(++rank, 20); };
  const std::vector<std::string> offences = {
      "GET / HTTP/1.1\r\n\r\n",
      hello(27, 20),
      hello(0xffffffff, 20),
      greeting() + request(9, 1, 0, "k"),
      greeting() + request(kPost, 0, 1, "v"),
      greeting() + request(kPost, kMaxTopic + 1, 0, ""),
      greeting() + request(kPost, 1, kMaxValue + 1, ""),
      greeting() + request(kPost, 1, 0xffffffff, ""),
      greeting() + request(kRead, 1, 1, "kv"),
      greeting() + request(kRead, 1, kReadBytes, "k" + raw(std::uint32_t{20}) + raw(0)),
      greeting().substr(0, 9),
  };
  for (std::size_t i = 0; i < offences.size(); ++i) {
    const Socket socket = stranger(port);
    say(socket, offences[i]);
    // The last one is the beginning of a hello: it ends when the client closes.
    if (i + 1 == offences.size()) ::shutdown(socket.fd(), SHUT_WR);
    EXPECT_TRUE(is_disconnected(socket)) << "offence " << i;
  }
  // More values than any rank needs.
  const Socket greedy = stranger(port);
  say(greedy, greeting());
  for (int i = 0; i < 1000; ++i) say(greedy, request(kPost, 4, 0, fmt::format("{:04}", i)));
  EXPECT_TRUE(is_disconnected(greedy));
}

// Lowers the limit of file descriptors so that none is left.
class NoDescriptorLeft {
 public:
  NoDescriptorLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    const Socket next(::dup(0));
    low.rlim_cur = static_cast<rlim_t>(next.fd());
    ::setrlimit(RLIMIT_NOFILE, &low);
  }
  ~NoDescriptorLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptorLeft(const NoDescriptorLeft&) = delete;
  NoDescriptorLeft& operator=(const NoDescriptorLeft&) = delete;

 private:
  rlimit before_{};
};

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

TEST(TcpStore, SaysThatFileDescriptorsRanOut) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port), later());
  Socket late(::socket(AF_INET, SOCK_STREAM, 0));
  SocketAddress address = any_address(AF_INET);
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.set_port(port);
  {
    const NoDescriptorLeft limit;
    ASSERT_EQ(::connect(late.fd(), address.get(), address.length), 0);
    for (const Deadline end = later(); zero.remark().empty() && Clock::now() < end.at;) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_THAT(zero.remark(),
                HasSubstr("rank 0 could not accept connections: Too many open files"));
    EXPECT_THAT(zero.remark(), HasSubstr("ulimit -n"));
    // The server's thread must not spin meanwhile.
    const double before = cpu_seconds();
    std::this_thread::sleep_for(seconds(1));
    EXPECT_LT(cpu_seconds() - before, 0.3);
    const Error error = error_of([&] { TcpStore one(store_for(1, 2, port), in_seconds(1)); });
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("rank 1: can't connect to rank 0: Too many open files"));
  }
  // It goes on when there are some again.
  TcpStore one(store_for(1, 2, port), later());
  one.post("here", bytes("1"));
  EXPECT_EQ(zero.read(1, "here", later()), bytes("1"));
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
  std::atomic<int> done = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        std::this_thread::sleep_for(milliseconds(100 * rank));
        const auto transport = connect_gloo(options_for(rank, 3, port));
        std::vector<float> one(1, 1.0f);
        transport->native_sum(one);
        sum += static_cast<int>(one[0]);
        wait_for_all(done, 3);
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
}  // namespace thinreduce::tcp_store_test

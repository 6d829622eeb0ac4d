// The meeting: its bytes, its deadline, and the ranks that its errors name.
#include "thinreduce/transport/gloo/meeting.h"

#include <fmt/format.h>
#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "thinreduce/transport/gloo/addresses.h"
#include "thinreduce/transport/gloo/descriptors.h"
#include "thinreduce/transport/gloo/tcp_store_server.h"

namespace thinreduce::meeting_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

// One rank's view of a store that all share: counts, and may be slow.
class View : public gloo::rendezvous::Store {
 public:
  explicit View(gloo::rendezvous::Store& store, milliseconds delay = milliseconds(0))
      : store_(store), delay_(delay) {}
  void set(const std::string& key, const std::vector<char>& value) override {
    std::this_thread::sleep_for(delay_);
    bytes += value.size();
    ++requests;
    store_.set(key, value);
  }
  std::vector<char> get(const std::string& key) override {
    auto value = store_.get(key);
    bytes += value.size();
    ++requests;
    return value;
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    store_.wait(keys, timeout);
  }

  std::size_t bytes = 0;
  std::size_t requests = 0;

 private:
  gloo::rendezvous::Store& store_;
  milliseconds delay_;
};

void run_ranks(int world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Meeting, BytesGrowWithTheSquareOfTheRanks) {
  for (const std::size_t world : {2, 5, 16}) {
    gloo::rendezvous::HashStore store;
    std::atomic<std::size_t> bytes = 0;
    std::atomic<std::size_t> requests = 0;
    run_ranks(static_cast<int>(world), [&](int rank) {
      View view(store);
      EXPECT_NO_THROW((void)connect_gloo(options_for(rank, static_cast<int>(world), 1), view));
      bytes += view.bytes;
      requests += view.requests;
    });
    // Two rounds: N messages to rank 0, which reads N and answers with one that N - 1 read. A
    // message has one byte, and in the first round 35 per address.
    const std::size_t list = 35 * world;
    EXPECT_EQ(requests, 2 * (world + world + 1 + (world - 1)));
    EXPECT_EQ(bytes, requests + list + list + list * world);
  }
}

TEST(Meeting, ASlowRankHasTheWholeTimeout) {
  gloo::rendezvous::HashStore store;
  run_ranks(2, [&](int rank) {
    View view(store, rank == 1 ? milliseconds(2500) : milliseconds(0));
    GlooOptions options = options_for(rank, 2, 1);
    options.connect_timeout = Seconds(12);
    EXPECT_NO_THROW((void)connect_gloo(options, view));
  });
}

TEST(Meeting, AllRanksNameTheRankThatFailed) {
  gloo::rendezvous::HashStore store;
  run_ranks(3, [&](int rank) {
    GlooOptions options = options_for(rank, 3, 1);
    if (rank == 2) options.interface = "nosuch0";
    options.connect_timeout = Seconds(60);
    const Error error = error_of([&] { (void)connect_gloo(options, store); });
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), testing::StartsWith(fmt::format("rank {}: ", rank)));
    EXPECT_THAT(error.what(), HasSubstr("rank 2: network interface \"nosuch0\""));
  });
}

// Answers the hello of every client, and nothing else, as a process that was stopped in between.
TEST(Meeting, OfAStoppedMasterNobodyElseIsBlamed) {
  int why = 0;
  SocketAddress address = address_for_peers("test", "", "127.0.0.1");
  const Socket listener = listen_at(address, why);
  std::thread master([&] {
    Socket client;
    while (!client) client = Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const char welcome[5] = {store_protocol::kDone, 0, 0, 0, 0};
    EXPECT_EQ(::send(client.fd(), welcome, sizeof(welcome), MSG_NOSIGNAL), 5);
    char byte = 0;
    while (::recv(client.fd(), &byte, 1, 0) > 0) continue;
  });
  GlooOptions options = options_for(1, 3, own_address(listener).port());
  options.connect_timeout = Seconds(1);
  const Error error = error_of([&] { (void)connect_gloo(options); });
  master.join();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank 1: no answer from rank 0 at 127.0.0.1:{}",
                                                  options.master_port)));
  EXPECT_THAT(error.what(), Not(HasSubstr("did not connect")));
}

TEST(Meeting, AStoreThatForgetsIsNotARankThatNeverArrived) {
  // Takes values and has none.
  class Void : public gloo::rendezvous::Store {
   public:
    void set(const std::string&, const std::vector<char>&) override {}
    std::vector<char> get(const std::string&) override { return {}; }
    void wait(const std::vector<std::string>&) override {}
    void wait(const std::vector<std::string>&, const milliseconds& timeout) override {
      std::this_thread::sleep_for(timeout);
      throw Error(ErrorCode::timeout, "nothing");
    }
  } store;
  GlooOptions options = options_for(1, 3, 1);
  options.connect_timeout = Seconds(0.2);
  const Error error = error_of([&] { (void)connect_gloo(options, store); });
  EXPECT_THAT(error.what(), HasSubstr("rank 1: the store through which the ranks meet no longer"));
}

TEST(Meeting, RanksOfTwoNetworksAreAnError) {
  gloo::rendezvous::HashStore store;
  std::string why;
  const PeerAddress far{resolve("10.1.2.3", 4711, why).at(0), {}};
  std::vector<char> message{0};
  for (const char byte : far.to_bytes()) message.push_back(byte);
  store.set("address/1", message);
  const Error error = error_of([&] { (void)connect_gloo(options_for(0, 2, 1), store); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 listens at 127.0.0.1, which other machines can't "
                                      "reach, and rank 1 at 10.1.2.3"));
}

TEST(Meeting, NonsenseOnTheBoardIsABadFrame) {
  for (const std::vector<char>& message : {std::vector<char>{}, std::vector<char>{99},
                                           std::vector<char>{-1}, std::vector<char>{0, 4}}) {
    gloo::rendezvous::HashStore store;
    store.set("address/1", message);
    const Error error = error_of([&] { (void)connect_gloo(options_for(0, 2, 1), store); });
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
  }
}

TEST(Addresses, PeersCanReachThem) {
  EXPECT_EQ(address_for_peers("test", "", "127.0.0.1").host(), "127.0.0.1");
  EXPECT_TRUE(address_for_peers("test", "", "localhost").is_loopback());
  EXPECT_TRUE(address_for_peers("test", "lo", "192.0.2.1").is_loopback());
  // With or without a name that the master gives itself: a loopback address only if there is no
  // other. The route to an address of the documentation shows whether there is one.
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  const SocketAddress route = address_for_peers("test", "", "");
  EXPECT_EQ(address_for_peers("test", "", name).is_loopback(), route.is_loopback());
  const Error error = error_of([] { (void)address_for_peers("rank 3", "", "no.such.invalid"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("rank 3: can't reach rank 0's host 'no.such.invalid'"));
}

TEST(Addresses, RankZeroListensNoWiderThanNeeded) {
  const auto hosts = [](const std::string& master) {
    std::vector<std::string> all;
    for (const SocketAddress& one : listening_addresses(master)) all.push_back(one.host());
    return all;
  };
  const std::vector<std::string> everywhere = {"::", "0.0.0.0"};
  EXPECT_EQ(hosts("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(hosts("127.3.2.1"), std::vector<std::string>{"127.3.2.1"});
  EXPECT_EQ(hosts("localhost").size(), 1u);
  // Addresses of other machines, which must be translated on the way here.
  EXPECT_EQ(hosts("198.51.100.7"), everywhere);
  EXPECT_EQ(hosts("no.such.invalid"), everywhere);
}

TEST(Descriptors, TheSoftLimitIsRaised) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  require_descriptors(0, 2, 100);
  rlimit raised{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_GE(raised.rlim_cur, 140u);
  const Error error = error_of([&] { require_descriptors(3, 9, before.rlim_max + 1); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("rank 3: a world of 9 ranks needs"));
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("the hard limit is {}", before.rlim_max)));
  ::setrlimit(RLIMIT_NOFILE, &before);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(Descriptors, AWorldUsesTwoPerPeerAndGivesThemBack) {
  constexpr std::size_t kWorld = 4;
  const std::size_t before = open_descriptors();
  std::atomic<std::size_t> ready = 0;
  std::atomic<bool> counted = false;
  std::size_t during = 0;
  std::thread counter([&] {
    while (ready < kWorld) std::this_thread::sleep_for(milliseconds(1));
    during = open_descriptors();
    counted = true;
  });
  run_gloo_ranks(kWorld, [&](Transport&) {
    ++ready;
    while (!counted) std::this_thread::sleep_for(milliseconds(1));
  });
  counter.join();
  // Per rank also the epoll of Gloo's thread, and epoll and alarm of the lifelines' thread.
  EXPECT_LE(during, before + kWorld * (2 * (kWorld - 1) + 3));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GlooEncryption, IsRefusedBecauseThereIsNone) {
  ::setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS", 1);
  const Error error = error_of([] { (void)connect_gloo(options_for(0, 2, 1)); });
  gloo::rendezvous::HashStore store;
  const Error other = error_of([&] { (void)connect_gloo(options_for(0, 2, 1), store); });
  ::unsetenv("GLOO_DEVICE_TRANSPORT");
  for (const Error& one : {error, other}) {
    EXPECT_EQ(one.code(), ErrorCode::unavailable);
    EXPECT_THAT(one.what(), HasSubstr("GLOO_DEVICE_TRANSPORT=TCP_TLS asks for encryption"));
    EXPECT_THAT(one.what(), HasSubstr("not encrypted"));
  }
}

}  // namespace
}  // namespace thinreduce::meeting_test

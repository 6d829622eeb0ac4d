// Worlds with a secret: who is let in, who is refused, and what each of them is told.
#include <fmt/format.h>
#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "thinreduce/transport/gloo/tcp_store.h"
#include "thinreduce/transport/gloo/tcp_store_server.h"
#include "thinreduce/transport/proof.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce::gloo_secret_test {
namespace {

using testing::HasSubstr;

const char* const kOne = "correct horse battery staple";
const char* const kOther = "correct horse battery stable";

GlooOptions secret_options(int rank, int world, std::uint16_t port, const char* text) {
  GlooOptions options = options_for(rank, world, port);
  options.connect_timeout = Seconds(60);
  if (text != nullptr) options.secret = Secret::from_text(text);
  return options;
}

TcpStoreOptions store_for(int rank, int world, std::uint16_t port, const char* text) {
  return {.rank = rank,
          .world = world,
          .master_addr = "127.0.0.1",
          .master_port = port,
          .secret = text == nullptr ? Secret() : Secret::from_text(text)};
}

void pass_a_message(Transport& transport) {
  const int world = transport.size();
  const int next = (transport.rank() + 1) % world;
  const int from = (transport.rank() + world - 1) % world;
  const auto message = pattern(70'001, transport.rank());
  std::vector<std::byte> got(message.size());
  auto received = transport.receive(from, Channel::data, got);
  auto sent = transport.send(next, Channel::data, message);
  sent->wait(soon());
  received->wait(soon());
  EXPECT_EQ(got, pattern(message.size(), from));
}

Socket stranger_at(std::uint16_t port, const std::string& bytes) {
  std::string why;
  const SocketAddress address = resolve("127.0.0.1", port, why).at(0);
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.fd(), address.get(), address.length), 0);
  [[maybe_unused]] const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return socket;
}

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

TEST(GlooSecret, RanksWithTheSameSecretMeetAndOthersAreRefused) {
  constexpr int kWorld = 3;
  const std::uint16_t port = free_port();
  std::atomic<int> done = 0;
  const auto rank_main = [&](int rank) {
    const auto transport = connect_gloo(secret_options(rank, kWorld, port, kOne));
    pass_a_message(*transport);
    wait_for_all(done, kWorld);
  };
  // Rank 2 comes last, after all who must not take its place.
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(std::async(std::launch::async, rank_main, rank));
  const Error other =
      error_of([&] { (void)connect_gloo(secret_options(2, kWorld, port, kOther)); });
  EXPECT_EQ(other.code(), ErrorCode::mismatch);
  EXPECT_THAT(other.what(), HasSubstr("rank 2: rank 0 at 127.0.0.1:"));
  EXPECT_THAT(other.what(), HasSubstr("has another secret; give all ranks the same"));
  const Error none =
      error_of([&] { (void)connect_gloo(secret_options(2, kWorld, port, nullptr)); });
  EXPECT_EQ(none.code(), ErrorCode::mismatch);
  EXPECT_THAT(none.what(), HasSubstr("rank 2: rejected by rank 0: rank 2 at 127.0.0.1:"));
  EXPECT_THAT(none.what(), HasSubstr("has no secret, and rank 0 has one"));
  std::vector<Socket> strangers;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(), std::string("thinsec2"),
        "thinsec2" + raw(2U) + raw(3U) + std::string(32, 'n') + std::string(500, 'p'),
        std::string(100'000, 'x')}) {
    strangers.push_back(stranger_at(port, bytes));
  }
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  }
  ranks.push_back(std::async(std::launch::async, rank_main, 2));
  for (auto& rank : ranks) EXPECT_NO_THROW(rank.get());
}

TEST(GlooSecret, RankZeroWithoutASecretSaysSo) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port, nullptr), soon());
  const Error error = error_of([&] { TcpStore one(store_for(1, 2, port, kOne), soon()); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("has a secret, and rank 0 has none"));
  EXPECT_THAT(zero.remark(), HasSubstr("rank 1 at 127.0.0.1:"));
  TcpStore one(store_for(1, 2, port, nullptr), soon());
}

TEST(GlooSecret, RankZeroNamesTheRanksThatItRefused) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 3, port, kOne), soon());
  (void)error_of([&] { TcpStore one(store_for(1, 3, port, kOther), soon()); });
  (void)error_of([&] { TcpStore two(store_for(2, 3, port, nullptr), soon()); });
  const Deadline end = soon();
  while (zero.remark().find("another secret") == std::string::npos && Clock::now() < end.at) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(zero.remark(), HasSubstr("says it is rank 1, at 127.0.0.1:"));
  EXPECT_THAT(zero.remark(), HasSubstr("has another secret than rank 0"));
  EXPECT_THAT(zero.remark(), HasSubstr("rank 2 at 127.0.0.1:"));
  // Their places are free.
  TcpStore one(store_for(1, 3, port, kOne), soon());
  one.post("here", {'1'});
  EXPECT_EQ(zero.read(1, "here", soon()), std::vector<char>{'1'});
}

// The server's own bytes can't be used as an answer to it, in the same connection or another.
TEST(GlooSecret, AProofCanNotBeSentBack) {
  const std::uint16_t port = free_port();
  TcpStore zero(store_for(0, 2, port, kOne), soon());
  for (int round = 0; round < 2; ++round) {
    const Socket socket =
        stranger_at(port, "thinsec2" + raw(1U) + raw(2U) + std::string(kNonceBytes, 'n'));
    std::string reply(store_protocol::kReplyBytes + kNonceBytes + kProofBytes, '\0');
    ASSERT_EQ(::recv(socket.fd(), reply.data(), reply.size(), MSG_WAITALL),
              static_cast<ssize_t>(reply.size()));
    const std::string proof = reply.substr(reply.size() - kProofBytes);
    ASSERT_EQ(::send(socket.fd(), proof.data(), proof.size(), 0),
              static_cast<ssize_t>(proof.size()));
    char status = 0;
    ASSERT_EQ(::recv(socket.fd(), &status, 1, 0), 1);
    EXPECT_EQ(status, store_protocol::kRejected);
  }
}

// The ranks meet in a store that anybody may write, so the connections themselves must refuse.
TEST(GlooSecret, ConnectionsRefuseARankWithAnotherSecretOrNone) {
  for (const char* const wrong : {kOther, static_cast<const char*>(nullptr)}) {
    constexpr int kWorld = 3;
    gloo::rendezvous::HashStore store;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        const Error error = error_of([&] {
          (void)connect_gloo(secret_options(rank, kWorld, 0, rank == 1 ? wrong : kOne), store);
        });
        EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
        if (wrong == nullptr) {
          EXPECT_THAT(error.what(), HasSubstr("rank 0 has a secret, and rank 1 has none"));
        } else {
          EXPECT_THAT(error.what(), HasSubstr("has another secret; give all ranks the same"));
          EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        }
      });
    }
  }
}

TEST(GlooSecret, RanksMeetThroughAStoreOfTheCaller) {
  constexpr int kWorld = 3;
  gloo::rendezvous::HashStore store;
  std::atomic<int> done = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_NO_THROW({
        const auto transport = connect_gloo(secret_options(rank, kWorld, 0, kOne), store);
        pass_a_message(*transport);
        wait_for_all(done, kWorld);
      });
    });
  }
}

}  // namespace
}  // namespace thinreduce::gloo_secret_test

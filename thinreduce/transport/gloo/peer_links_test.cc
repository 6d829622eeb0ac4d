// Connections between ranks, with strangers that send anything to the ports of the ranks.
#include "thinreduce/transport/gloo/peer_links.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "tests/listeners.h"
#include "thinreduce/transport/gloo/addresses.h"

namespace thinreduce::peer_links_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

Deadline later() {
  return Deadline::after(Seconds(60));
}

SocketAddress loopback() {
  return address_for_peers("test", "", "127.0.0.1");
}

Socket connected_to(const SocketAddress& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.fd(), address.get(), address.length) != 0) return {};
  return socket;
}

void say(const Socket& socket, const std::string& bytes) {
  [[maybe_unused]] const auto sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::string text(const Token& token) {
  return {token.data(), token.size()};
}

template <typename Number>
std::string raw(Number value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string hello(const PeerAddress& to, std::uint32_t rank, std::uint32_t use) {
  return "thinlnk1" + text(to.token) + raw(rank) + raw(use);
}

// The header of a message of Gloo for a receive that does not exist. From it, Gloo ends a process.
std::string deadly_message() {
  return raw(std::size_t{48}) + raw(std::size_t{1}) + raw(std::size_t{77}) + std::string(24, '\0');
}

// A byte from each rank to each other arrives on every link.
void expect_connected(std::vector<PeerLinks>& ranks) {
  for (std::size_t from = 0; from < ranks.size(); ++from) {
    for (std::size_t to = 0; to < ranks.size(); ++to) {
      for (std::size_t use = 0; use < kUses && from != to; ++use) {
        const char sent = static_cast<char>(16 * from + 4 * to + use);
        ASSERT_EQ(::send(ranks[from][to][use].socket.fd(), &sent, 1, 0), 1);
        char got = 0;
        while (::recv(ranks[to][from][use].socket.fd(), &got, 1, 0) != 1 && errno == EAGAIN) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        EXPECT_EQ(got, sent);
      }
    }
  }
}

TEST(PeerLinks, AnAddressSurvivesTheBoard) {
  for (const char* host : {"10.1.2.3", "2001:db8::7"}) {
    std::string why;
    PeerAddress peer{resolve(host, 4711, why).at(0), {'t', 'o', 'k'}};
    const auto bytes = peer.to_bytes();
    const PeerAddress read = PeerAddress::parse(bytes, loopback());
    EXPECT_EQ(read.address.to_string(), peer.address.to_string());
    EXPECT_EQ(read.token, peer.token);
    EXPECT_EQ(
        error_of([&] { (void)PeerAddress::parse(std::span(bytes).first(34), loopback()); }).code(),
        ErrorCode::bad_frame);
  }
}

TEST(PeerLinks, StrangersDoNotKeepRanksFromConnecting) {
  constexpr int kWorld = 3;
  std::vector<PeerListener> listeners;
  std::vector<PeerAddress> addresses;
  for (int rank = 0; rank < kWorld; ++rank) {
    listeners.emplace_back(rank, loopback());
    addresses.push_back(listeners.back().address());
  }
  PeerAddress wrong = addresses[0];
  wrong.token[5] ^= 1;
  std::vector<Socket> strangers;
  for (const PeerAddress& target : addresses) {
    for (const std::string& bytes :
         {deadly_message(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(),
          std::string("thin"), hello(wrong, 2, 0), hello(target, 0, 0), hello(target, 7, 0),
          hello(target, 2, 9), std::string(100'000, 'x'), hello(target, 2, 0).substr(0, 30)}) {
      strangers.push_back(connected_to(target.address));
      say(strangers.back(), bytes);
    }
  }
  std::vector<PeerLinks> links(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_NO_THROW(links[at] = listeners[at].connect(addresses, later()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(HasFailure());
  expect_connected(links);
  // Nothing listens any more.
  for (const PeerAddress& address : addresses) EXPECT_FALSE(connected_to(address.address));
}

TEST(PeerLinks, APlaceIsTakenOnce) {
  PeerListener zero(0, loopback());
  PeerListener one(1, loopback());
  const std::vector<PeerAddress> addresses = {zero.address(), one.address()};
  const Socket first = connected_to(addresses[0].address);
  say(first, hello(addresses[0], 1, 0));
  const Socket second = connected_to(addresses[0].address);
  say(second, hello(addresses[0], 1, 0));
  // Nobody takes the place of use 1.
  const Error error = error_of([&] { (void)zero.connect(addresses, Deadline::after(Seconds(1))); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 0: no connection from rank 1 at 127.0.0.1:"));
  EXPECT_THAT(error.what(), HasSubstr(fmt::format(
                                "(refused: {} claims to be rank 1, which has already connected "
                                "from {})",
                                own_address(second).to_string(), own_address(first).to_string())));
}

TEST(PeerLinks, NamesTheAddressThatDoesNotAnswer) {
  PeerListener one(1, loopback());
  SocketAddress nobody = loopback();
  nobody.set_port(free_port());
  const Error error = error_of([&] {
    (void)one.connect({PeerAddress{nobody, {}}, one.address()}, Deadline::after(Seconds(0.3)));
  });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(),
              HasSubstr(fmt::format("rank 1: can't connect to rank 0 at {}: Connection refused "
                                    "within 0.3 s",
                                    nobody.to_string())));
  EXPECT_THAT(error.what(), HasSubstr("THINREDUCE_INTERFACE"));
}

TEST(PeerLinks, AMessageToAnyPortDoesNotEndTheProcess) {
  std::atomic<bool> stop = false;
  std::atomic<int> attacks = 0;
  std::thread attacker([&] {
    std::vector<Socket> open;
    while (!stop) {
      for (const Listener& listener : own_listeners()) {
        SocketAddress address = loopback();
        address.set_port(listener.port);
        open.push_back(connected_to(address));
        say(open.back(), deadly_message());
        ++attacks;
      }
      if (open.size() > 100) open.clear();
    }
  });
  constexpr int kWorld = 4;
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> done = 0;
    // The last rank keeps the others listening until there were as many attacks as ranks.
    const int before = attacks;
    const auto wait_for_attacks = [&](int rank) {
      const Deadline end = later();
      while (rank == kWorld - 1 && attacks < before + kWorld && Clock::now() < end.at) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    run_gloo_ranks(
        kWorld,
        [&](Transport& transport) {
          std::vector<float> one(1, 1.0f);
          transport.native_sum(one);
          EXPECT_EQ(one[0], kWorld);
          wait_for_all(done, kWorld);
        },
        wait_for_attacks);
    EXPECT_GE(attacks, before + kWorld);
  }
  stop = true;
  attacker.join();
}

}  // namespace
}  // namespace thinreduce::peer_links_test

// Bytes on a data connection that are no message of Gloo.
#include "thinreduce/transport/gloo/adopted_mesh.h"

#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"
#include "thinreduce/transport/gloo/meeting.h"

namespace thinreduce::adopted_mesh_test {
namespace {

using testing::HasSubstr;

// As Gloo sends it.
struct Header {
  std::uint64_t bytes = sizeof(Header);
  std::uint64_t opcode = 1;
  std::uint64_t slot = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t remote_offset = 0;
};
constexpr std::uint64_t kCarries = 1;      // bytes follow
constexpr std::uint64_t kSendReady = 2;    // a notice
constexpr std::uint64_t kMessage = 16;     // bytes that rank 0 expects
constexpr std::uint64_t kNobodysSlot = 9;  // in which rank 0 expects nothing

// Returns rank 0's error when rank 1 sends `bytes` instead of a message.
Error error_after(std::span<const char> bytes) {
  gloo::rendezvous::HashStore store;
  std::thread peer([&] {
    StoreBoard board(1, store);
    const GlooOptions options = options_for(1, 2, 1);
    Meeting meeting(options, board, soon());
    const PeerLinks links = meeting.connect();
    meeting.confirm();
    const int data = links[0][kData].socket.fd();
    EXPECT_EQ(::send(data, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    char byte = 0;  // until rank 0 has gone, or given its notice
    while (::recv(links[0][kLifeline].socket.fd(), &byte, 1, 0) < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const Error error = error_of([&] {
    const auto transport = connect_gloo(options_for(0, 2, 1), store);
    std::array<std::byte, kMessage> message{};
    transport->receive(1, Channel::data, message)->wait(soon());
  });
  peer.join();
  return error;
}

Error error_after(const Header& header) {
  return error_after({reinterpret_cast<const char*>(&header), sizeof(header)});
}

void expect_refused(const Error& error) {
  EXPECT_EQ(error.code(), ErrorCode::bad_frame);
  EXPECT_THAT(error.what(), HasSubstr("rank 0: rank 1 sent bytes that Gloo can't read"));
}

TEST(AdoptedMesh, HeadersThatGlooDoesNotHaveAreRefused) {
  const auto slot = static_cast<std::uint64_t>(Channel::data);
  expect_refused(error_after(Header{.opcode = 77, .slot = slot}));
  expect_refused(error_after(Header{.opcode = 0, .slot = slot}));
  expect_refused(error_after(Header{.bytes = 47, .opcode = kSendReady, .slot = slot}));
  expect_refused(error_after(Header{.bytes = 48, .opcode = kCarries, .slot = slot, .length = 4}));
  expect_refused(error_after(Header{.opcode = kSendReady, .slot = slot, .offset = 1}));
  expect_refused(error_after(Header{.opcode = kSendReady, .slot = slot, .remote_offset = 1}));
}

TEST(AdoptedMesh, MessagesThatNoReceiveWaitsForAreRefused) {
  constexpr std::uint64_t kTooLong = kMessage + 1;
  expect_refused(error_after(Header{.bytes = 48 + kTooLong,
                                    .opcode = kCarries,
                                    .slot = static_cast<std::uint64_t>(Channel::data),
                                    .length = kTooLong}));
  expect_refused(error_after(Header{
      .bytes = 48 + kMessage, .opcode = kCarries, .slot = kNobodysSlot, .length = kMessage}));
}

TEST(AdoptedMesh, AnyOtherBytesAreRefused) {
  const std::string text = "GET / HTTP/1.1\r\nHost: a web server on another port\r\n\r\n";
  expect_refused(error_after(text));
}

}  // namespace
}  // namespace thinreduce::adopted_mesh_test

// The server of TcpStore: one thread, any number of untrusted clients.
//
// A client sends one hello, then one request at a time; integers are little-endian:
//   hello    magic "thinred1", u32 rank, u32 world
//   request  u8 kind (1 set, 2 get), u16 key length, u32 value length, key, value
//   reply    u8 status, u32 length, value or reason
//            (0 done, 1 rejected, 2 no such key, 3 no such key and rank 0 gave up)
// A client that sends anything else is disconnected. Every request is answered at once: a client
// that waits for a value asks again, so the server needs no deadlines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/transport/socket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

namespace store_protocol {
inline constexpr char kMagic[] = "thinred1";
inline constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
inline constexpr std::size_t kHelloBytes = kMagicBytes + 8;
inline constexpr std::size_t kRequestBytes = 7;
inline constexpr std::size_t kReplyBytes = 5;
inline constexpr std::uint8_t kSet = 1;
inline constexpr std::uint8_t kGet = 2;
inline constexpr std::uint8_t kDone = 0;
inline constexpr std::uint8_t kRejected = 1;
inline constexpr std::uint8_t kAbsent = 2;
inline constexpr std::uint8_t kOver = 3;
inline constexpr std::size_t kMaxKey = 256;
// Gloo stores one socket address of about 140 bytes per peer: enough for thousands of ranks.
inline constexpr std::size_t kMaxValue = 1 << 20;
}  // namespace store_protocol

class TcpStoreServer {
 public:
  // Listens on all interfaces. Throws Error{unavailable} if the port is taken.
  TcpStoreServer(int world, std::uint16_t port);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // Returns the rejected clients with the reasons, "" if there are none.
  [[nodiscard]] std::string rejected() const;
  // Answers requests for missing values with `reason` from now on.
  void give_up(const std::string& reason);

 private:
  struct Client {
    Socket socket;
    std::string name;  // address and port
    int rank = -1;     // -1 before its hello
    Clock::time_point since;
    std::vector<char> in;
    std::vector<char> out;
    bool leaving = false;  // to be disconnected once `out` is sent
  };

  void serve();
  void accept_one();
  // These return false if the client is gone or violated the protocol.
  [[nodiscard]] bool read_from(Client& client);
  [[nodiscard]] bool write_to(Client& client);
  [[nodiscard]] bool take_requests(Client& client);
  void greet(Client& client, std::uint32_t rank, std::uint32_t world);
  [[nodiscard]] bool store(Client& client, const std::string& key, std::vector<char> value);

  const int world_;
  Socket listener_;
  Socket wake_;
  std::atomic<bool> stop_{false};
  std::vector<Client> clients_;
  std::map<std::string, std::vector<char>> values_;
  mutable std::mutex mutex_;  // guards the next two
  std::string given_up_;
  std::vector<std::string> rejected_;
  std::thread thread_;
};

}  // namespace thinreduce

// The serving side of TcpStore: one thread, any number of clients, none of them trusted.
//
// A client says hello once, then asks one thing at a time; integers are little-endian:
//   hello    magic "thinred1", u32 rank, u32 world
//   request  u8 what (1 set, 2 get), u16 key length, u32 value length, key, value
//   reply    u8 status, u32 length, value or reason
//            (0 done, 1 turned away, 2 no such key, 3 no such key and rank 0 gave up)
// A client that says anything else is disconnected. Every request is answered at once: who waits
// for a value asks again, so that the server has no deadlines to keep.
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
inline constexpr std::uint8_t kTurnedAway = 1;
inline constexpr std::uint8_t kAbsent = 2;
inline constexpr std::uint8_t kOver = 3;
inline constexpr std::size_t kMaxKey = 256;
// Gloo stores one socket address of about 140 bytes a peer: enough for thousands of ranks.
inline constexpr std::size_t kMaxValue = 1 << 20;
}  // namespace store_protocol

class TcpStoreServer {
 public:
  // Listens on all interfaces. Throws Error{unavailable} when the port is taken.
  TcpStoreServer(int world, std::uint16_t port);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // Those who were turned away and why, "" when nobody was.
  [[nodiscard]] std::string turned_away() const;
  // From now on, who waits for a value is told that there will be none.
  void give_up(const std::string& reason);

 private:
  struct Client {
    Socket socket;
    std::string name;  // address and port
    int rank = -1;     // -1: has not said hello
    Clock::time_point since;
    std::vector<char> in;
    std::vector<char> out;
    bool leaving = false;  // disconnect once `out` is sent
  };

  void serve();
  void accept_one();
  // False: the client is gone or did not keep to the protocol.
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
  std::vector<std::string> turned_away_;
  std::thread thread_;
};

}  // namespace thinreduce

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
inline constexpr char magic[] = "thinred1";
inline constexpr std::size_t magic_bytes = sizeof(magic) - 1;
inline constexpr std::size_t hello_bytes = magic_bytes + 8;
inline constexpr std::size_t request_bytes = 7;
inline constexpr std::size_t reply_bytes = 5;
inline constexpr std::uint8_t set = 1;
inline constexpr std::uint8_t get = 2;
inline constexpr std::uint8_t done = 0;
inline constexpr std::uint8_t turned_away = 1;
inline constexpr std::uint8_t absent = 2;
inline constexpr std::uint8_t over = 3;
inline constexpr std::size_t max_key = 256;
// Gloo stores one socket address of about 140 bytes a peer: enough for thousands of ranks.
inline constexpr std::size_t max_value = 1 << 20;
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

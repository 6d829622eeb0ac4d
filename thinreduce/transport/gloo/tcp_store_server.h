// The server of TcpStore: one thread, any number of untrusted clients.
//
// A client sends one hello, then one request at a time; integers are little-endian:
//   hello    magic "thinred2", u32 rank, u32 world
//   request  u8 kind, u16 topic length, u32 value length, topic, value
//            1 post: stores the value under the client's rank and the topic, once
//            2 read: the value is u32 rank and u32 milliseconds to wait for it
//   reply    u8 status, u32 length, value or reason (0 done, 1 rejected, 2 no such value)
// With a secret, a client begins with these instead of the hello:
//   hello    magic "thinsec2", u32 rank, u32 world, nonce of 32 bytes
//   reply    nonce of 32 bytes, the server's proof of 32 bytes that it knows the secret
//   proof    of the client, 32 bytes; then the reply to the hello
// A client that sends anything else is disconnected. A rank number can be taken once, by the first
// client that claims it. Rank 0 is the server's own process and is not a client.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/proof.h"
#include "thinreduce/transport/socket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

namespace store_protocol {
inline constexpr char kMagic[] = "thinred2";
inline constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
inline constexpr std::size_t kHelloBytes = kMagicBytes + 8;
inline constexpr char kSecretMagic[] = "thinsec2";  // of kMagicBytes
inline constexpr std::size_t kRequestBytes = 7;
inline constexpr std::size_t kReadBytes = 8;
inline constexpr std::size_t kReplyBytes = 5;
inline constexpr std::uint8_t kPost = 1;
inline constexpr std::uint8_t kRead = 2;
inline constexpr std::uint8_t kDone = 0;
inline constexpr std::uint8_t kRejected = 1;
inline constexpr std::uint8_t kAbsent = 2;
inline constexpr std::size_t kMaxTopic = 64;
// The list of all addresses has 35 bytes per rank: enough for 100,000 ranks.
inline constexpr std::size_t kMaxValue = 4 << 20;

template <typename Number>
void append(std::vector<char>& bytes, Number value) {
  const std::size_t size = bytes.size();
  bytes.resize(size + sizeof(value));
  std::memcpy(bytes.data() + size, &value, sizeof(value));
}

// The facts that a proof of the secret covers.
struct Challenge {
  static constexpr std::string_view kServer = "store server";
  static constexpr std::string_view kClient = "store client";

  std::uint32_t rank;  // of the client
  std::uint32_t world;
  std::string client_nonce;
  std::string server_nonce;

  [[nodiscard]] std::string proof(const Secret& secret, std::string_view side) const {
    return prove(secret, side, {rank, world}, {client_nonce, server_nonce});
  }
};
}  // namespace store_protocol

class TcpStoreServer {
 public:
  // Listens at `host` if that is one address of this machine, otherwise on all interfaces. Throws
  // Error{unavailable} if the port is taken.
  TcpStoreServer(int world, const std::string& host, std::uint16_t port, const Secret& secret = {});
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // For rank 0, as in Board.
  void post(const std::string& topic, const std::vector<char>& value);
  [[nodiscard]] std::optional<std::vector<char>> read(int rank, const std::string& topic,
                                                      const Deadline& deadline);

  // Returns what kept ranks from joining, "" if there was nothing.
  [[nodiscard]] std::string remark() const;
  // Waits until all clients have left; returns at the deadline at the latest.
  void finish(const Deadline& deadline);

 private:
  using Key = std::pair<int, std::string>;  // rank, topic
  struct Waiting {
    Key key;
    Clock::time_point until;
  };
  struct Client {
    Socket socket;
    std::string name;  // address and port
    int rank = -1;     // -1 before its hello, and its proof if there is a secret
    std::optional<store_protocol::Challenge> challenge;  // that it has to answer
    Clock::time_point since;
    std::vector<char> in;
    std::vector<char> out;
    std::optional<Waiting> waiting;  // the read that is not answered yet
    bool leaving = false;            // to be disconnected once `out` is sent
  };

  void serve();
  [[nodiscard]] int milliseconds_to_wait() const;
  void serve_client(Client& client, short events);
  // Returns false if no connection is waiting.
  [[nodiscard]] bool accept_one();
  // These return false if the client is gone or violated the protocol.
  [[nodiscard]] bool read_from(Client& client);
  [[nodiscard]] bool write_to(Client& client);
  [[nodiscard]] bool take_requests(Client& client);
  [[nodiscard]] bool take_hello(Client& client);
  void take_proof(Client& client);
  [[nodiscard]] bool take_request(Client& client, std::uint8_t kind, std::string topic,
                                  std::vector<char> value);
  void greet(Client& client, std::uint32_t rank, std::uint32_t world);
  void reject(Client& client, std::string reason);
  void answer(Client& client);
  void wake() const;

  const int world_;
  const Secret secret_;
  Socket listener_;
  Socket wake_;
  mutable std::mutex mutex_;  // guards all that follows; the thread holds it except in poll()
  std::condition_variable changed_;
  bool stop_ = false;
  std::vector<Client> clients_;
  std::vector<std::string> taken_;  // by rank, the name of its client; "" if it has not joined
  std::map<Key, std::vector<char>> values_;
  std::vector<std::string> remarks_;
  Clock::time_point accept_at_{};  // not before this time, after file descriptors ran out
  bool starved_ = false;           // they did
  std::thread thread_;
};

}  // namespace thinreduce

// Where the ranks of a gloo world meet: rank 0 keeps names and values while the others connect.
//
// The store lives only until every rank is connected. It knows which ranks are to come, so it turns
// away a rank of another world or one that is there already, and can say who never arrived.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

class TcpStoreServer;

struct TcpStoreOptions {
  int rank = 0;
  int world = 1;
  // Where rank 0 listens; it does so on all its interfaces.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  // For everything together, from the first connect to the last wait.
  Seconds timeout{30};
};

class TcpStore : public gloo::rendezvous::Store {
 public:
  // Rank 0 starts to serve. Throws Error{timeout} when nobody answers at the address,
  // Error{unavailable} when the port is taken, Error{mismatch} when rank 0 turns this rank away.
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(const std::string& key, const std::vector<char>& value) override;
  // Waits for the value. Throws Error{timeout} at the deadline of the store.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  // Throws Error{timeout} after `timeout` or at the deadline of the store, whichever is first.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  // Those whom rank 0 turned away, for its own message when a rank is missing; "" when there are
  // none or when this is not rank 0.
  [[nodiscard]] std::string turned_away() const;

  // Rank 0: tells the ranks that still wait for a value why there will be none.
  void give_up(const std::string& reason);

 private:
  class Client;
  // Empty when there is no such value by the deadline.
  [[nodiscard]] std::optional<std::vector<char>> find(const std::string& key,
                                                      const Deadline& deadline);
  std::vector<char> get_by(const std::string& key, const Deadline& deadline);

  TcpStoreOptions options_;
  Deadline deadline_;
  std::unique_ptr<TcpStoreServer> server_;  // rank 0 only
  std::unique_ptr<Client> client_;
};

}  // namespace thinreduce

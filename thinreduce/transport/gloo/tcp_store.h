// The rendezvous of a gloo world: rank 0 serves keys and values while the ranks connect.
//
// The store lives only until every rank is connected. It knows the ranks of its world, so it
// rejects a rank of another world and a rank that has joined already, and can name those that never
// arrived.
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
  // The address of rank 0, which listens on all its interfaces.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  // The total time, from the first connect to the last wait.
  Seconds timeout{30};
};

class TcpStore : public gloo::rendezvous::Store {
 public:
  // Connects to rank 0; rank 0 also starts the server. Throws Error{timeout} if no server answers
  // at the address, Error{unavailable} if the port is taken, Error{mismatch} if rank 0 rejects this
  // rank.
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(const std::string& key, const std::vector<char>& value) override;
  // Waits for the value. Throws Error{timeout} at the deadline of the store.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  // Throws Error{timeout} after `timeout` or at the deadline of the store, whichever comes first.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  // Returns a list of the rejected clients, which rank 0 adds to its error when a rank is missing;
  // "" if there are none or this is not rank 0.
  [[nodiscard]] std::string rejected() const;

  // On rank 0, tells the ranks that wait for a value why it will never come.
  void give_up(const std::string& reason);

 private:
  class Client;
  // Returns nothing if the value does not exist by the deadline.
  [[nodiscard]] std::optional<std::vector<char>> find(const std::string& key,
                                                      const Deadline& deadline);
  std::vector<char> get_by(const std::string& key, const Deadline& deadline);

  TcpStoreOptions options_;
  Deadline deadline_;
  std::unique_ptr<TcpStoreServer> server_;  // rank 0 only
  std::unique_ptr<Client> client_;
};

}  // namespace thinreduce

// The board of a world that meets at MASTER_ADDR and MASTER_PORT: rank 0 serves it there.
//
// The store lives only until every rank is connected. It knows the ranks of its world, so it
// rejects a rank of another world and a rank whose number is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/gloo/board.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

class TcpStoreServer;

struct TcpStoreOptions {
  int rank = 0;
  int world = 1;
  // The address of rank 0.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  Secret secret = {};
};

class TcpStore : public Board {
 public:
  // Connects to rank 0, or serves the board as rank 0. Throws Error{timeout} if no server answers
  // at the address by the deadline, Error{unavailable} if the port is taken, Error{mismatch} if
  // rank 0 rejects this rank or has another secret.
  TcpStore(const TcpStoreOptions& options, const Deadline& deadline);
  ~TcpStore() override;

  void post(const std::string& topic, const std::vector<char>& value) override;
  [[nodiscard]] std::optional<std::vector<char>> read(int rank, const std::string& topic,
                                                      const Deadline& deadline) override;
  // Returns the clients that rank 0 rejected and why; "" on other ranks.
  [[nodiscard]] std::string remark() const override;

  // On rank 0, waits until the other ranks have left, so that each has read what it needs. Returns
  // at the deadline at the latest.
  void finish(const Deadline& deadline);

 private:
  class Client;

  TcpStoreOptions options_;
  Deadline deadline_;
  std::unique_ptr<TcpStoreServer> server_;  // rank 0
  std::unique_ptr<Client> client_;          // the other ranks
};

}  // namespace thinreduce

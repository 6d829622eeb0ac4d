// Where the ranks of a world leave short values for one another while they meet.
//
// A rank posts under its own number, at most once per topic.
#pragma once

#include <gloo/rendezvous/store.h>

#include <optional>
#include <string>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

class Board {
 public:
  Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  virtual ~Board() = default;

  virtual void post(const std::string& topic, const std::vector<char>& value) = 0;
  // Waits for the value that `rank` posts. Returns nothing if there is none at the deadline. Throws
  // Error if the board itself does not answer.
  [[nodiscard]] virtual std::optional<std::vector<char>> read(int rank, const std::string& topic,
                                                              const Deadline& deadline) = 0;
  // Returns what else is known about ranks that are missing, as in "rejected: ..."; or "".
  [[nodiscard]] virtual std::string remark() const { return ""; }
};

// A board in a store that the caller of connect_gloo provides.
class StoreBoard : public Board {
 public:
  StoreBoard(int rank, gloo::rendezvous::Store& store) : rank_(rank), store_(store) {}

  void post(const std::string& topic, const std::vector<char>& value) override;
  [[nodiscard]] std::optional<std::vector<char>> read(int rank, const std::string& topic,
                                                      const Deadline& deadline) override;

 private:
  int rank_;
  gloo::rendezvous::Store& store_;
};

}  // namespace thinreduce

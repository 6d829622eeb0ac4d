// Agreement: before a bucket is reduced, every rank tells every other what it is about to do. All
// ranks see the same statements, so all come to the same verdict.
//
// Steps: 1. Bytes sent: (N-1) * 96. Statements travel on a channel of their own and are sent when a
// bucket is submitted, so while earlier buckets are on the wire they cost no time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {

// What a rank says about its bucket's numbers.
enum class Numbers : std::uint32_t {
  good = 0,
  gradient_not_finite = 1,
  second_moment_no_square = 2,  // negative, NaN or Inf
};

struct Statement {
  FrameId id;  // id.method: the method that will serve the bucket
  Numbers numbers = Numbers::good;
  std::uint64_t first_bad = 0;    // index of the first bad one when they are not good
  std::uint64_t fingerprint = 0;  // Method::fingerprint()
  std::uint64_t last_result = 0;  // hash of the bucket's last mean, or 0
};

inline constexpr std::size_t kStatementBytes = kFrameHeaderBytes + 32;
using StatementBytes = std::array<std::byte, kStatementBytes>;

[[nodiscard]] StatementBytes encode_statement(const Statement& statement, int rank);
// Throws Error{bad_frame}.
[[nodiscard]] Statement decode_statement(const StatementBytes& bytes, int rank);

// Throws Error{mismatch} or Error{bad_input} unless the ranks may go on together; the message is
// the same on all ranks. `statements` in rank order.
void check_agreement(const std::vector<Statement>& statements);

// What a NaN or Inf at `index` of a rank's bucket is reported as; `consequence` ends the sentence.
[[nodiscard]] Error nonfinite_gradient(const FrameId& id, int rank, std::uint64_t index,
                                       std::string_view consequence);

// One bucket's statements on their way.
class Agreement {
 public:
  Agreement(Transport& transport, const Statement& own);
  // Waits for all statements and checks them.
  void conclude(Seconds timeout);

 private:
  int rank_;
  Statement own_;
  StatementBytes out_;
  std::vector<StatementBytes> in_;  // by rank
  std::vector<Pending> pending_;
};

}  // namespace thinreduce

// Agreement: before a bucket is reduced, every rank sends a statement about it to every peer. All
// ranks see the same statements, so all come to the same verdict.
//
// Steps: 1. Bytes sent: (N-1) * 96. Buckets in flight have tracks of their own, so a statement
// costs no time while other buckets are on the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/plan/bucket_times.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {

// The verdict of a rank on its own values. After a refusal (3 and more) the rank does not reduce
// the bucket, and says so because its peers wait for its statement.
enum class Numbers : std::uint32_t {
  good = 0,
  gradient_not_finite = 1,
  second_moment_no_square = 2,  // the second moment has a negative value, NaN or Inf
  gradient_missized = 3,        // not as many values as the bucket has elements
  second_moment_missized = 4,
  foreign_handle = 5,  // the handle is of another session
  declined = 6,        // the caller has nothing to submit; the statement's bucket says nothing
};

struct Refusal {
  Numbers why;
  std::uint64_t given = 0;  // number of values
  std::string reason{};     // of a caller that declined
};

// Returns the reason of a refusal in words.
[[nodiscard]] std::string describe_refusal(const Refusal& refusal, std::uint64_t elements);

// Seconds of a bucket's last step on one rank; 0 unless a planner needs them. On the wire they have
// 16 bits each.
struct StepFigures {
  float ready = 0;    // from the step's first bucket until this one was submitted
  float seconds = 0;  // from then until the mean was there
  float busy = 0;     // part of `seconds`: encoding and decoding
  float wait = 0;     // part of `seconds`: waiting in the agreement
};

struct Statement {
  FrameId id;  // id.method is the method that will reduce the bucket
  Numbers numbers = Numbers::good;
  // Index of the first bad value, or the number of values given if that is wrong; else ignored.
  std::uint64_t first_bad = 0;
  StepFigures figures{};          // only sent with good numbers
  std::uint64_t fingerprint = 0;  // Method::fingerprint()
  std::uint64_t last_result = 0;  // hash of the bucket's last mean, 0 if it is not compared
  float norm = 0;                 // of the gradient, for a guard; else 0
};

inline constexpr std::size_t kStatementBytes = kFrameHeaderBytes + 32;
using StatementBytes = std::array<std::byte, kStatementBytes>;

[[nodiscard]] StatementBytes encode_statement(const Statement& statement, int rank);
// Throws Error{bad_frame}.
[[nodiscard]] Statement decode_statement(const StatementBytes& bytes, int rank);

// Throws Error{mismatch} when the statements, in rank order, differ, or Error{bad_input} when
// values are bad; `layout` names their tensor. The message is the same on all ranks.
void check_agreement(const std::vector<Statement>& statements, const BucketLayout& layout = {});

// Returns the error for a NaN or Inf at an index of a rank's bucket; `consequence` ends its
// message.
[[nodiscard]] Error nonfinite_values(const FrameId& id, int rank, const BucketLayout& layout,
                                     std::uint64_t index, std::string_view consequence);

// Combines the figures of all ranks. Of the waits, the two smallest sum up to two latencies: those
// of the last rank and of the one before it, each of which waits for the other's statement.
[[nodiscard]] BucketTimes combine_figures(const std::vector<Statement>& statements);

// What the ranks know of each other after an agreement.
struct Agreed {
  BucketTimes times;         // of the last step
  std::vector<float> norms;  // of the gradients, in rank order
};

// Exchanges statements, waits for all of them and calls check_agreement().
Agreed agree(Transport& transport, const Statement& own, const WaitLimits& limits,
             const BucketLayout& layout);

}  // namespace thinreduce

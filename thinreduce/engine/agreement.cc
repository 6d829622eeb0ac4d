#include "thinreduce/engine/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/short_seconds.h"

namespace thinreduce {
namespace {

// Throws Error{mismatch} naming the first rank whose field differs from rank 0's.
template <typename Field>
void same_on_all(const std::vector<Statement>& statements, const char* what, const char* advice,
                 Field field) {
  for (std::size_t rank = 1; rank < statements.size(); ++rank) {
    const auto first = field(statements[0]);
    const auto other = field(statements[rank]);
    if (first == other) continue;
    throw Error(ErrorCode::mismatch,
                fmt::format("bucket {}, step {}: {} is {} on rank 0 and {} on rank {}; {}",
                            statements[0].id.bucket, statements[0].id.step, what, first, other,
                            rank, advice));
  }
}

// Where the shortest wait is a smaller part of the next one, the waits do not show the latency.
constexpr double kShownLatency = 0.1;

// Throws Error{bad_input} naming the first rank that declined. Comes before all comparisons,
// because such a rank does not know which bucket the others submit.
void check_nobody_declined(const std::vector<Statement>& statements) {
  const auto declined = [](const Statement& one) { return one.numbers == Numbers::declined; };
  const auto first = std::ranges::find_if(statements, declined);
  if (first == statements.end()) return;
  const auto submitted = std::ranges::find_if_not(statements, declined);
  const auto& named = submitted == statements.end() ? *first : *submitted;
  throw Error(
      ErrorCode::bad_input,
      fmt::format("bucket {}: rank {} did not submit this bucket, and the error on that rank "
                  "says why; nothing was reduced",
                  named.id.bucket, first - statements.begin()));
}

}  // namespace

StatementBytes encode_statement(const Statement& statement, int rank) {
  StatementBytes bytes{};
  const auto payload = std::span(bytes).subspan(kFrameHeaderBytes);
  store_value(payload, 0, static_cast<std::uint16_t>(statement.numbers));
  store_value(payload, 2, statement.id.method);
  store_value(payload, 4, statement.norm);
  if (statement.numbers == Numbers::good) {
    const StepFigures& figures = statement.figures;
    store_value(payload, 8, encode_seconds(figures.ready));
    store_value(payload, 10, encode_seconds(figures.seconds));
    store_value(payload, 12, encode_seconds(figures.busy));
    store_value(payload, 14, encode_seconds(figures.wait));
  } else {
    store_value(payload, 8, statement.first_bad);
  }
  store_value(payload, 16, statement.fingerprint);
  store_value(payload, 24, statement.last_result);
  FrameId id = statement.id;
  id.method = 0;
  const auto header = encode_header(id, rank, payload);
  std::copy(header.begin(), header.end(), bytes.begin());
  return bytes;
}

Statement decode_statement(const StatementBytes& bytes, int rank) {
  const auto payload = std::span(bytes).subspan(kFrameHeaderBytes);
  const FrameHeader header = decode_header(bytes, rank);
  check_payload(header, payload);
  const auto status = load_value<std::uint16_t>(payload, 0);
  const auto norm = load_value<float>(payload, 4);
  if (header.id.method != 0 || status > static_cast<std::uint16_t>(Numbers::declined) ||
      !(norm >= 0) || std::isinf(norm)) {
    throw Error(
        ErrorCode::bad_frame,
        fmt::format("rank {} sent an invalid agreement frame (method {}, status {}, norm {})", rank,
                    header.id.method, status, norm));
  }
  Statement statement;
  statement.id = header.id;
  statement.id.method = load_value<std::uint16_t>(payload, 2);
  statement.norm = norm;
  statement.numbers = static_cast<Numbers>(status);
  if (statement.numbers == Numbers::good) {
    const auto seconds = [&](std::size_t offset) {
      return decode_seconds(load_value<std::uint16_t>(payload, offset));
    };
    statement.figures = {
        .ready = seconds(8), .seconds = seconds(10), .busy = seconds(12), .wait = seconds(14)};
  } else {
    statement.first_bad = load_value<std::uint64_t>(payload, 8);
  }
  statement.fingerprint = load_value<std::uint64_t>(payload, 16);
  statement.last_result = load_value<std::uint64_t>(payload, 24);
  return statement;
}

void check_agreement(const std::vector<Statement>& statements, const BucketLayout& layout) {
  check_nobody_declined(statements);
  const char* order = "submit the same buckets in the same order on all ranks";
  same_on_all(statements, "the bucket's id", order, [](auto& s) { return s.id.bucket; });
  for (std::size_t rank = 0; rank < statements.size(); ++rank) {
    const Statement& statement = statements[rank];
    if (statement.numbers < Numbers::gradient_missized) continue;
    throw Error(
        ErrorCode::bad_input,
        fmt::format("bucket {}, rank {}: {}; nothing was reduced", statement.id.bucket, rank,
                    describe_refusal({.why = statement.numbers, .given = statement.first_bad},
                                     statement.id.elements)));
  }
  same_on_all(statements, "the number of elements", order, [](auto& s) { return s.id.elements; });
  same_on_all(statements, "the step", "load the states of one checkpoint on all ranks",
              [](auto& s) { return s.id.step; });
  same_on_all(statements, "the hash of the bucket's layout",
              "use the same spec and the same tensors (names, shapes, order) on all ranks",
              [](auto& s) { return s.id.layout_hash; });
  same_on_all(statements, "the method", "use the same spec on all ranks",
              [](auto& s) { return s.id.method; });
  same_on_all(statements, "the hash of the method's shared state",
              "the ranks have drifted apart; restart from a checkpoint (with auto, they may also "
              "submit different buckets in a step)",
              [](auto& s) { return s.fingerprint; });
  same_on_all(statements, "the hash of the last mean",
              "the ranks have drifted apart; restart from a checkpoint",
              [](auto& s) { return s.last_result; });
  for (std::size_t rank = 0; rank < statements.size(); ++rank) {
    const Statement& statement = statements[rank];
    if (statement.numbers == Numbers::good) continue;
    if (statement.numbers == Numbers::gradient_not_finite) {
      throw nonfinite_values(statement.id, static_cast<int>(rank), layout, statement.first_bad,
                             "nothing was reduced");
    }
    throw Error::nonfinite(
        fmt::format("bucket {}, step {}: the second moment of rank {} is negative, NaN or Inf at "
                    "{}; nothing was reduced",
                    statement.id.bucket, statement.id.step, rank,
                    layout.describe_element(statement.first_bad)));
  }
}

std::string describe_refusal(const Refusal& refusal, std::uint64_t elements) {
  if (refusal.why == Numbers::declined) return refusal.reason;
  if (refusal.why == Numbers::foreign_handle) {
    return "its handle is from another session; add the bucket to this one";
  }
  return refusal.why == Numbers::second_moment_missized
             ? fmt::format("the second moment has {} values, the bucket {} elements", refusal.given,
                           elements)
             : fmt::format("submit() got {} values, but the bucket has {} elements", refusal.given,
                           elements);
}

Error nonfinite_values(const FrameId& id, int rank, const BucketLayout& layout, std::uint64_t index,
                       std::string_view consequence) {
  return Error::nonfinite(fmt::format("bucket {}, step {}: {}; {}", id.bucket, id.step,
                                      layout.describe_nonfinite(rank, index), consequence));
}

Agreed agree(Transport& transport, const Statement& own, const WaitLimits& limits,
             const BucketLayout& layout) {
  const StatementBytes out = encode_statement(own, transport.rank());
  std::vector<StatementBytes> in(static_cast<std::size_t>(transport.size()));  // by rank
  in[static_cast<std::size_t>(transport.rank())] = out;
  std::vector<Pending> pending;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    pending.push_back(
        transport.receive(peer, Channel::agreement, in[static_cast<std::size_t>(peer)]));
    pending.push_back(transport.send(peer, Channel::agreement, out));
  }
  for (auto& operation : pending) operation->wait(Deadline::after(limits));
  std::vector<Statement> statements;
  for (std::size_t rank = 0; rank < in.size(); ++rank) {
    statements.push_back(decode_statement(in[rank], static_cast<int>(rank)));
  }
  check_agreement(statements, layout);
  Agreed agreed{.times = combine_figures(statements), .norms = {}};
  for (const Statement& statement : statements) agreed.norms.push_back(statement.norm);
  return agreed;
}

BucketTimes combine_figures(const std::vector<Statement>& statements) {
  BucketTimes times;
  std::vector<double> waits;
  for (const Statement& statement : statements) {
    const StepFigures& figures = statement.figures;
    times.ready += figures.ready / static_cast<double>(statements.size());
    times.seconds = std::max(times.seconds, static_cast<double>(figures.seconds));
    times.busy = std::max(times.busy, static_cast<double>(figures.busy));
    waits.push_back(figures.wait);
  }
  std::ranges::sort(waits);
  times.wait = waits.empty() ? 0 : waits.back();
  // A rank that is late by more than a latency does not wait at all.
  const bool known = waits.size() > 1 && waits[0] > kShownLatency * waits[1];
  if (known) times.latency = (waits[0] + waits[1]) / 2;
  return times;
}

}  // namespace thinreduce

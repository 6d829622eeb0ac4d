#include "thinreduce/engine/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr FrameId kNoBucket{.bucket = 0xFFFFFFFF};
// Half a millisecond at 1 Gbit, 50 ms at 10 Mbit.
constexpr std::size_t kProbeBytes = std::size_t{64} * 1024;
// The first round trip waits for ranks that come late; the fastest counts. Long messages are fewer,
// because they take seconds on the slowest links.
constexpr int kRounds = 4;
// Long messages that take less than this, about 13 Gbit, show how fast the processor copies them,
// not a limit of the link.
constexpr double kShortestTransfer = 40e-6;
constexpr int kLongRounds = 2;

// Sends `there` bytes to the right neighbour, which sends one byte back. All ranks do so at the
// same time. Returns the seconds until the answer.
double round_trip(Exchange& exchange, std::size_t there) {
  const int right = (exchange.rank() + 1) % exchange.size();
  const int left = (exchange.rank() + exchange.size() - 1) % exchange.size();
  const std::vector<std::byte> out(there);
  std::vector<std::byte> in(there);
  std::array<std::byte, 1> reply{};
  std::array<std::byte, 1> answer{};
  const auto start = exchange.transport().now();
  CheckedReceive from_left(exchange, left, in);
  CheckedReceive back(exchange, right, answer);
  CheckedSend to_right(exchange, right, out);
  from_left.wait(exchange);
  CheckedSend to_left(exchange, left, reply);
  back.wait(exchange);
  const double seconds = Seconds(exchange.transport().now() - start).count();
  to_right.wait(exchange);
  to_left.wait(exchange);
  return seconds;
}

double fastest_round_trip(Exchange& exchange, std::size_t there, int rounds) {
  double fastest = round_trip(exchange, there);
  for (int round = 1; round < rounds; ++round) {
    fastest = std::min(fastest, round_trip(exchange, there));
  }
  return fastest;
}

Link measure(Exchange& exchange) {
  const double empty = fastest_round_trip(exchange, 1, kRounds);
  const double full = fastest_round_trip(exchange, kProbeBytes, kLongRounds);
  Link link;
  link.latency = Seconds(empty / 2);
  const double transfer = full - empty;
  if (transfer > kShortestTransfer) {
    link.bytes_per_second = static_cast<double>(kProbeBytes) / transfer;
  }
  return link;
}

// Returns the figures of all ranks that have any: latency and rate.
std::vector<Link> gather_links(Exchange& exchange, const std::optional<Link>& own) {
  std::array<double, 2> figures{};
  if (own) figures = {own->latency.count(), own->bytes_per_second};
  const auto bytes = std::as_bytes(std::span(figures));
  std::vector<Link> links;
  gather(exchange, bytes.first(own ? bytes.size() : 0), bytes.size(),
         [&](int rank, std::span<const std::byte> got) {
           if (got.empty()) return;
           Link link;
           if (got.size() == bytes.size()) {
             link.latency = Seconds(load_value<double>(got, 0));
             link.bytes_per_second = load_value<double>(got, sizeof(double));
           }
           if (got.size() != bytes.size() || !(link.latency.count() >= 0) ||
               !(link.bytes_per_second >= 0) || !std::isfinite(link.latency.count())) {
             throw Error(
                 ErrorCode::bad_frame,
                 fmt::format("rank {} sent an invalid link of {} bytes: latency {} s, {} "
                             "bytes per second; both must be numbers and at least 0",
                             rank, got.size(), link.latency.count(), link.bytes_per_second));
           }
           links.push_back(link);
         });
  return links;
}

}  // namespace

Link agree_on_link(Transport& transport, const WaitLimits& limits,
                   const std::optional<Link>& given) {
  if (transport.size() == 1) return given.value_or(Link{});
  Exchange exchange(transport, limits, kNoBucket);
  std::vector<Link> links = gather_links(exchange, given);
  if (links.size() < static_cast<std::size_t>(transport.size())) {
    links = gather_links(exchange, measure(exchange));
  }
  Link slowest;
  for (const Link& link : links) {
    slowest.latency = std::max(slowest.latency, link.latency);
    const bool limited = link.bytes_per_second > 0;
    const bool first = slowest.bytes_per_second == 0;
    if (limited && (first || link.bytes_per_second < slowest.bytes_per_second)) {
      slowest.bytes_per_second = link.bytes_per_second;
    }
  }
  return slowest;
}

}  // namespace thinreduce

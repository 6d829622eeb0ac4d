#include "thinreduce/transport/throttle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/lane.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

// A unit of measurement; its factor converts to bytes per second or seconds.
struct Unit {
  std::string_view name;
  double factor;
};

bool same_but_for_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char c, char low) {
    return c == low || (c >= 'A' && c <= 'Z' && c - 'A' + 'a' == low);
  });
}

template <std::size_t N>
double parse_quantity(std::string_view text, std::string_view quantity,
                      const std::array<Unit, N>& units, std::string_view whole) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const Unit& candidate : units) {
    if (error == std::errc{} && same_but_for_case(unit, candidate.name) && number >= 0 &&
        number < 1e15) {
      return number * candidate.factor;
    }
  }
  throw Error(
      ErrorCode::bad_input,
      fmt::format("link '{}': {} is not a {}; write a bandwidth in kbit, mbit or gbit, or "
                  "'unlimited', optionally a latency in us, ms or s, as in 100mbit,5ms{}",
                  whole, text.empty() ? "an empty part" : fmt::format("'{}'", text), quantity,
                  whole.find(';') == std::string_view::npos
                      ? ""
                      : "; only `bench reduce --simulate` takes links that differ by rank"));
}

// Returns a number that is equal on ranks that share a monotonic clock: on one boot of one kernel.
std::uint64_t clock_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(file, boot_id);
  return checksum(boot_id);
}

Channel stamp_channel(Channel channel) {
  return static_cast<Channel>(static_cast<std::uint8_t>(channel) + 128);
}

// Sends the message and a stamp: the time at which its last byte leaves the sender's link.
class ThrottledSend final : public Operation {
 public:
  ThrottledSend(Transport& inner, int peer, Channel channel, std::span<const std::byte> message,
                Clock::time_point leaves)
      : stamp_(std::chrono::duration_cast<Nanoseconds>(leaves.time_since_epoch()).count()),
        stamp_sent_(inner.send(peer, stamp_channel(channel),
                               std::as_bytes(std::span<const std::int64_t>(&stamp_, 1)))),
        message_sent_(inner.send(peer, channel, message)) {}

  void wait(const Deadline& deadline) override {
    message_sent_->wait(deadline);
    stamp_sent_->wait(deadline);
  }

 private:
  std::int64_t stamp_;
  Pending stamp_sent_;
  Pending message_sent_;
};

class ThrottledReceive final : public Operation {
 public:
  struct Way {
    Link link;
    Lane& lane;
  };

  ThrottledReceive(Transport& inner, int peer, Channel channel, std::span<std::byte> message,
                   Way way)
      : way_(way),
        bytes_(message.size()),
        stamp_received_(inner.receive(peer, stamp_channel(channel),
                                      std::as_writable_bytes(std::span<std::int64_t>(&stamp_, 1)))),
        message_received_(inner.receive(peer, channel, message)) {}

  void wait(const Deadline& deadline) override {
    stamp_received_->wait(deadline);
    message_received_->wait(deadline);
    const Clock::time_point leaves{
        std::chrono::duration_cast<Clock::duration>(Nanoseconds(stamp_))};
    const auto latency = std::chrono::duration_cast<Clock::duration>(way_.link.latency);
    // Cut-through: the first byte reaches this rank's lane one message length before the last.
    const auto first = leaves + latency - way_.lane.duration(bytes_);
    const auto arrives = way_.lane.pass(first, bytes_);
    if (arrives > deadline.at) {
      throw Error(
          ErrorCode::timeout,
          fmt::format(
              "the emulated link of {} needs longer than {:g} s for the messages in flight, "
              "the last of {} bytes; use a faster link or raise patience",
              way_.link.to_string(), deadline.allowed.count(), bytes_));
    }
    std::this_thread::sleep_until(arrives);
  }

 private:
  Way way_;
  std::size_t bytes_;
  std::int64_t stamp_ = 0;
  Pending stamp_received_;
  Pending message_received_;
};

class Throttled final : public Transport {
 public:
  Throttled(std::unique_ptr<Transport> inner, Link link)
      : inner_(std::move(inner)),
        link_(link),
        out_(link.bytes_per_second),
        in_(link.bytes_per_second) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    const auto leaves = out_.pass(Clock::now(), message.size());
    return std::make_unique<ThrottledSend>(*inner_, peer, channel, message, leaves);
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return std::make_unique<ThrottledReceive>(*inner_, peer, channel, message,
                                              ThrottledReceive::Way{link_, in_});
  }

  std::unique_ptr<Transport> inner_;
  Link link_;
  Lane out_;
  Lane in_;
};

// The description of its link that a rank sends to the others.
struct LinkStatement {
  std::uint64_t clock = 0;
  double bytes_per_second = 0;
  double latency = 0;

  [[nodiscard]] Link link() const { return {bytes_per_second, Seconds(latency)}; }
};

std::vector<LinkStatement> exchange_statements(Transport& transport, const LinkStatement& own,
                                               Seconds timeout) {
  std::vector<LinkStatement> all(static_cast<std::size_t>(transport.size()), own);
  std::vector<Pending> pending;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const auto place = std::span(all).subspan(static_cast<std::size_t>(peer), 1);
    pending.push_back(transport.receive(peer, Channel::agreement, std::as_writable_bytes(place)));
    pending.push_back(transport.send(peer, Channel::agreement,
                                     std::as_bytes(std::span<const LinkStatement>(&own, 1))));
  }
  for (auto& operation : pending) operation->wait(Deadline::after(timeout));
  return all;
}

// Throws the same Error{mismatch} on all ranks if only some of them have a link.
void compare_links(const std::vector<LinkStatement>& ranks) {
  const auto limits = [](const LinkStatement& rank) { return rank.link().limits(); };
  const auto with = std::find_if(ranks.begin(), ranks.end(), limits);
  const auto without = std::find_if_not(ranks.begin(), ranks.end(), limits);
  if (with == ranks.end() || without == ranks.end()) return;
  throw Error(ErrorCode::mismatch,
              fmt::format("rank {} emulates a link of {}, rank {} none; give all ranks a link, or "
                          "none of them",
                          with - ranks.begin(), with->link().to_string(), without - ranks.begin()));
}

void compare_clocks(const std::vector<LinkStatement>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].clock == ranks[0].clock) continue;
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {} runs on another machine than rank 0, and a throttled link "
                            "needs one clock; omit the link to use the real network",
                            rank));
  }
}

}  // namespace

Clock::time_point Lane::pass(Clock::time_point earliest, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return Clock::time_point(busy_.take(earliest.time_since_epoch(), duration(bytes)));
}

Clock::duration Lane::duration(std::size_t bytes) const {
  if (bytes_per_second_ <= 0) return Clock::duration::zero();
  return std::chrono::duration_cast<Clock::duration>(
      Seconds(static_cast<double>(bytes) / bytes_per_second_));
}

Link Link::parse(std::string_view text) {
  constexpr std::array<Unit, 4> kRates{
      {{"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}}};
  constexpr std::array<Unit, 3> kTimes{{{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
  const auto comma = text.find(',');
  const auto rate = text.substr(0, comma);
  Link link;
  if (!same_but_for_case(rate, "unlimited")) {
    link.bytes_per_second = parse_quantity(rate, "bandwidth", kRates, text);
    if (link.bytes_per_second <= 0) {
      throw Error(ErrorCode::bad_input, fmt::format("link '{}': the bandwidth must be above 0; for "
                                                    "no limit write 'unlimited'",
                                                    text));
    }
  }
  if (comma != std::string_view::npos) {
    link.latency = Seconds(parse_quantity(text.substr(comma + 1), "latency", kTimes, text));
  }
  // Beyond these a clock could not count the time of a message.
  constexpr double kMinRate = 1.0 / 8;
  constexpr double kMaxRate = 1e18 / 8;
  constexpr Seconds kMaxLatency{3600};
  if ((link.bytes_per_second > 0 && link.bytes_per_second < kMinRate) ||
      link.bytes_per_second > kMaxRate || link.latency > kMaxLatency) {
    throw Error(ErrorCode::bad_input,
                fmt::format("link '{}': the bandwidth must be 1 bit to 1000000000 gbit per second, "
                            "the latency at most 3600 s",
                            text));
  }
  return link;
}

bool Link::limits() const {
  return bytes_per_second > 0 || latency.count() > 0;
}

std::string Link::to_string() const {
  const double bits = bytes_per_second * 8;
  std::string text = "unlimited";
  if (bits >= 1e9) {
    text = fmt::format("{:g}gbit", bits / 1e9);
  } else if (bits >= 1e6) {
    text = fmt::format("{:g}mbit", bits / 1e6);
  } else if (bits > 0) {
    text = fmt::format("{:g}kbit", bits / 1e3);
  }
  if (latency.count() > 0) text += fmt::format(",{:g}ms", latency.count() * 1e3);
  return text;
}

std::unique_ptr<Transport> throttle(std::unique_ptr<Transport> inner, Link link, Seconds timeout) {
  const auto ranks = exchange_statements(
      *inner, {clock_identity(), link.bytes_per_second, link.latency.count()}, timeout);
  compare_links(ranks);
  if (!link.limits()) return inner;
  compare_clocks(ranks);
  return std::make_unique<Throttled>(std::move(inner), link);
}

}  // namespace thinreduce

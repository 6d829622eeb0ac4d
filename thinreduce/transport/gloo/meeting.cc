#include "thinreduce/transport/gloo/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/addresses.h"

namespace thinreduce {
namespace {

// A message on the board starts with 0, or with 1 + the code of the error that follows as text.
constexpr char kFine = 0;

template <typename Bytes>
std::vector<char> message_of(int first, const Bytes& rest) {
  std::vector<char> message(1 + rest.size(), static_cast<char>(first));
  std::copy(rest.begin(), rest.end(), message.begin() + 1);
  return message;
}

std::vector<char> fine(const std::vector<char>& part) {
  return message_of(kFine, part);
}

std::vector<char> failed(ErrorCode code, std::string_view reason) {
  return message_of(1 + static_cast<int>(code), reason);
}

std::string name_of(int rank) {
  return fmt::format("rank {}", rank);
}

// Returns rank 0's error as its verdict, to which every rank adds its own name.
std::string_view as_verdict(std::string_view text) {
  constexpr std::string_view kPrefix = "rank 0: ";
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  return text;
}

}  // namespace

const Meeting::Round Meeting::kAddresses{"address", "addresses", "did not connect"};
const Meeting::Round Meeting::kConnected{"connected", "all connected",
                                         "did not connect to all others"};

void Meeting::begin(const Round& round) {
  round_ = &round;
  said_ = false;
}

PeerLinks Meeting::connect() {
  begin(kAddresses);
  const SocketAddress own =
      address_for_peers(name_of(options_.rank), options_.interface, options_.master_addr);
  PeerListener listener(options_.rank, own, options_.secret);
  const auto bytes = listener.address().to_bytes();
  const auto list = gather(kAddresses, {bytes.begin(), bytes.end()});
  const auto ranks = parse(list, listener.address().address);
  begin(kConnected);
  return listener.connect(ranks, deadline_, [this] { hear(kConnected); });
}

void Meeting::confirm() {
  (void)gather(kConnected, {});
}

void Meeting::give_up(const Error& error) noexcept {
  if (round_ == nullptr || said_) return;
  try {
    if (options_.rank == 0) {
      board_.post(round_->verdict, failed(error.code(), as_verdict(error.what())));
    } else {
      board_.post(round_->topic, failed(error.code(), error.what()));
    }
  } catch (const std::exception&) {
    // The others find out at their deadlines.
  }
}

std::vector<char> Meeting::gather(const Round& round, std::vector<char> part) {
  board_.post(round.topic, fine(part));
  if (options_.rank == 0) {
    auto all = collect(round);
    board_.post(round.verdict, fine(all));
    said_ = true;
    return all;
  }
  said_ = true;
  const auto verdict = board_.read(0, round.verdict, deadline_);
  if (!verdict) name_missing(round);
  return unwrap(*verdict, 0);
}

std::vector<char> Meeting::collect(const Round& round) {
  std::vector<char> all;
  for (int rank = 0; rank < options_.world; ++rank) {
    const auto message = board_.read(rank, round.topic, deadline_);
    if (!message) name_missing(round);
    const auto part = unwrap(*message, rank);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void Meeting::hear(const Round& round) {
  const Deadline now = Deadline::after(Seconds(0));
  const bool leads = options_.rank == 0;
  for (int rank = leads ? 1 : 0; rank < (leads ? options_.world : 1); ++rank) {
    const auto message = board_.read(rank, leads ? round.topic : round.verdict, now);
    if (message) (void)unwrap(*message, rank);
  }
}

void Meeting::name_missing(const Round& round) {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.world; ++rank) {
    if (!board_.read(rank, round.topic, deadline_)) missing.push_back(rank);
  }
  std::string what;
  if (std::ranges::find(missing, options_.rank) != missing.end()) {
    what = "the store through which the ranks meet no longer answers";
  } else if (missing.empty()) {
    what = "rank 0 did not go on";
  } else {
    what = fmt::format("{} {} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                       round.missing);
  }
  const std::string more = board_.remark();
  throw Error(ErrorCode::timeout,
              fmt::format("{}: {} within {:g} s{}; start all {} ranks, or raise "
                          "connect_timeout (--timeout on the command line)",
                          name_of(options_.rank), what, deadline_.allowed.count(),
                          more.empty() ? "" : fmt::format(" ({})", more), options_.world));
}

std::vector<char> Meeting::unwrap(const std::vector<char>& message, int sender) const {
  if (!message.empty() && message[0] == kFine) return {message.begin() + 1, message.end()};
  constexpr int kCodes = static_cast<int>(ErrorCode::internal) + 1;
  if (message.empty() || message[0] < 0 || message[0] > kCodes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{}: rank {}'s message at start-up can't be read; run the same version "
                            "on all ranks",
                            name_of(options_.rank), sender));
  }
  throw Error(static_cast<ErrorCode>(message[0] - 1),
              fmt::format("{}: {}", name_of(options_.rank),
                          std::string_view(message.data() + 1, message.size() - 1)));
}

std::vector<PeerAddress> Meeting::parse(const std::vector<char>& list,
                                        const SocketAddress& own) const {
  const auto world = static_cast<std::size_t>(options_.world);
  if (list.size() != world * PeerAddress::kBytes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{}: the list of addresses has {} bytes instead of {}; run the same "
                            "version on all ranks",
                            name_of(options_.rank), list.size(), world * PeerAddress::kBytes));
  }
  std::vector<PeerAddress> ranks;
  std::size_t local = world;
  std::size_t remote = world;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const std::span bytes =
        std::span(list).subspan(rank * PeerAddress::kBytes, PeerAddress::kBytes);
    ranks.push_back(PeerAddress::parse(bytes, own));
    if (ranks.back().secret != ranks.front().secret) {
      const bool first = ranks.front().secret;
      throw Error(
          ErrorCode::mismatch,
          fmt::format("{}: rank {} has a secret, and rank {} has none; {}, or none of them",
                      name_of(options_.rank), first ? 0 : rank, first ? rank : 0, kSameSecret));
    }
    (ranks.back().address.is_loopback() ? local : remote) = rank;
  }
  if (local == world || remote == world) return ranks;
  throw Error(
      ErrorCode::mismatch,
      fmt::format("{}: rank {} listens at {}, which other machines can't reach, and rank {} "
                  "at {}; choose one network for all ranks with THINREDUCE_INTERFACE",
                  name_of(options_.rank), local, ranks[local].address.host(), remote,
                  ranks[remote].address.host()));
}

}  // namespace thinreduce

#include "thinreduce/transport/gloo/link_maker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "thinreduce/error.h"
#include "thinreduce/transport/proof.h"

namespace thinreduce {
namespace {

constexpr std::string_view kMagic = "thinlnk1";
constexpr std::string_view kSecretMagic = "thinlnk2";
// The sides of a connection, in a proof.
constexpr std::string_view kDialerSide = "link dialer";
constexpr std::string_view kListenerSide = "link listener";
constexpr std::size_t kHelloBytes = kMagic.size() + sizeof(Token) + 8;
constexpr std::size_t kWelcomeBytes = kMagic.size() + sizeof(Token);
constexpr std::uint64_t kListener = 0;
// A rank sends its hello at once; a connection that is silent for this long is not of a rank.
constexpr std::chrono::seconds kHelloPatience{10};
constexpr std::chrono::milliseconds kDialPause{50};
// Between looks at what the others say, while connections fail.
constexpr std::chrono::milliseconds kHearPause{300};
// Connections in addition to those of ranks, and strangers that an error names.
constexpr std::size_t kSpare = 64;
constexpr std::size_t kMaxRefused = 4;

std::string_view magic(const Secret& secret) {
  return secret ? kSecretMagic : kMagic;
}

std::string text(const Token& token) {
  return {token.data(), token.size()};
}

template <typename Number>
std::string raw(Number value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Appends to `in` until it has `count` bytes, and takes nothing after them, which belongs to Gloo.
// Returns false, with the reason in `why`, if the connection is over.
bool fill(const Socket& socket, std::string& in, std::size_t count, std::string& why) {
  std::array<char, kWelcomeBytes + kNonceBytes + kProofBytes> bytes;  // of the longest message
  while (in.size() < count) {
    const auto got = ::recv(socket.fd(), bytes.data(), count - in.size(), MSG_DONTWAIT);
    if (got > 0) {
      in.append(bytes.data(), static_cast<std::size_t>(got));
    } else if (got == 0) {
      why = "the connection was closed";
      return false;
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR) {
      why = describe_errno(errno);
      return false;
    }
  }
  return true;
}

// A new connection has room for a message this short.
bool send_at_once(const Socket& socket, const std::string& bytes) {
  return ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

LinkMaker::LinkMaker(int rank, const Secret& secret, const Socket& listener, const PeerAddress& own,
                     const std::vector<PeerAddress>& ranks, const Deadline& deadline, Hearing hear)
    : rank_(rank),
      secret_(secret),
      listener_(listener),
      own_(own),
      ranks_(ranks),
      deadline_(deadline),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      dial_at_(Clock::time_point::max()),
      look_at_(Clock::now() + kHelloPatience),
      hear_(std::move(hear)),
      hear_at_(Clock::time_point::max()),
      why_(ranks.size()),
      missing_(kUses * (ranks.size() - 1)),
      links_(ranks.size()) {
  if (!events_) throw out_of_resources(errno);
  watch(listener_, EPOLLIN, kListener);
}

PeerLinks LinkMaker::run() {
  for (int peer = 0; peer < rank_; ++peer) {
    for (std::size_t use = 0; use < kUses; ++use) dial(peer, use);
  }
  std::array<epoll_event, 256> ready;
  while (missing_ > 0) {
    const auto until = std::min({deadline_.at, dial_at_, look_at_, hear_at_});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    const int wait = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    const int count = ::epoll_wait(events_.fd(), ready.data(), ready.size(), wait);
    if (count < 0 && errno != EINTR) throw out_of_resources(errno);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = ready[static_cast<std::size_t>(i)].data.u64;
      if (id == kListener) {
        accept_all();
      } else {
        advance(id);
      }
    }
    const auto now = Clock::now();
    if (missing_ > 0 && now >= deadline_.at) time_out();
    if (now >= dial_at_) dial_again();
    if (now >= look_at_) drop_silent();
    if (now >= hear_at_) this->hear();
  }
  return std::move(links_);
}

void LinkMaker::watch(const Socket& socket, std::uint32_t events, std::uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(events_.fd(), EPOLL_CTL_ADD, socket.fd(), &event) == 0) return;
  if (errno == EEXIST && ::epoll_ctl(events_.fd(), EPOLL_CTL_MOD, socket.fd(), &event) == 0) return;
  throw out_of_resources(errno);
}

void LinkMaker::dial(int peer, std::size_t use) {
  Attempt attempt;
  attempt.peer = peer;
  attempt.use = use;
  attempt.link.address = ranks_[static_cast<std::size_t>(peer)].address;
  const SocketAddress& address = attempt.link.address;
  attempt.link.socket =
      Socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.link.socket) throw out_of_resources(errno);
  const Socket& socket = attempt.link.socket;
  if (::connect(socket.fd(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    fail(attempt, describe_errno(errno));
    return;
  }
  const std::uint64_t id = next_id_++;
  watch(socket, EPOLLOUT, id);
  attempts_.emplace(id, std::move(attempt));
}

void LinkMaker::hear_soon() {
  if (secret_ && hear_) hear_at_ = std::min(hear_at_, Clock::now() + kHearPause);
}

void LinkMaker::hear() {
  hear_at_ = Clock::now() + kHearPause;
  hear_();
}

void LinkMaker::dial_again() {
  dial_at_ = Clock::time_point::max();
  for (const Unreached& one : std::exchange(unreached_, {})) dial(one.peer, one.use);
}

void LinkMaker::accept_all() {
  for (;;) {
    Attempt attempt;
    attempt.link.address.length = sizeof(attempt.link.address.storage);
    attempt.link.socket =
        Socket(::accept4(listener_.fd(), attempt.link.address.get(), &attempt.link.address.length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = errno;
    if (!attempt.link.socket) {
      if (out_of_descriptors(error)) throw out_of_resources(error);
      return;
    }
    // Most hellos are there already.
    if (advance_incoming(attempt)) continue;
    if (incoming_ >= kSpare + missing_) drop_silent();
    attempt.since = Clock::now();
    const std::uint64_t id = next_id_++;
    watch(attempt.link.socket, EPOLLIN, id);
    attempts_.emplace(id, std::move(attempt));
    ++incoming_;
  }
}

// Makes room: drops the connections that are silent for long, or else the one that is silent for
// longest.
void LinkMaker::drop_silent() {
  const auto now = Clock::now();
  look_at_ = now + kHelloPatience;
  const auto drop = [&](const Attempt& attempt) {
    return attempt.peer < 0 && now - attempt.since > kHelloPatience;
  };
  incoming_ -= std::erase_if(attempts_, [&](const auto& one) { return drop(one.second); });
  if (incoming_ < kSpare + missing_) return;
  const auto oldest =
      std::min_element(attempts_.begin(), attempts_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.peer >= 0, a.first) < std::pair(b.second.peer >= 0, b.first);
      });
  attempts_.erase(oldest);
  --incoming_;
}

void LinkMaker::advance(std::uint64_t id) {
  const auto found = attempts_.find(id);
  if (found == attempts_.end()) return;
  Attempt& attempt = found->second;
  const bool incoming = attempt.peer < 0;
  const bool done = incoming ? advance_incoming(attempt) : advance_outgoing(attempt);
  if (done && incoming) --incoming_;
  if (!done && !incoming) watch(attempt.link.socket, EPOLLIN, id);
  if (done) attempts_.erase(id);
}

bool LinkMaker::advance_outgoing(Attempt& attempt) {
  const PeerAddress& peer = ranks_[static_cast<std::size_t>(attempt.peer)];
  const Socket& socket = attempt.link.socket;
  if (!attempt.greeted) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (secret_) attempt.nonce = new_nonce();
    const std::string hello = std::string(magic(secret_)) + text(peer.token) +
                              raw(static_cast<std::uint32_t>(rank_)) +
                              raw(static_cast<std::uint32_t>(attempt.use)) + attempt.nonce;
    if (error != 0 || !send_at_once(socket, hello)) {
      fail(attempt, describe_errno(error != 0 ? error : errno));
      return true;
    }
    attempt.greeted = true;
    return false;
  }
  const std::size_t size = kWelcomeBytes + (secret_ ? kNonceBytes + kProofBytes : 0);
  std::string why;
  if (!fill(socket, attempt.in, size, why)) {
    fail(attempt, why);
    return true;
  }
  if (attempt.in.size() < size) return false;
  return take_welcome(attempt);
}

bool LinkMaker::take_welcome(Attempt& attempt) {
  const std::string_view in = attempt.in;
  if (!in.starts_with(std::string(magic(secret_)) + text(own_.token))) {
    fail(attempt, "another program answers there");
    return true;
  }
  if (secret_) {
    const std::string_view nonce = in.substr(kWelcomeBytes, kNonceBytes);
    const std::string_view theirs = in.substr(kWelcomeBytes + kNonceBytes);
    if (!same_proof(theirs, proof(kListenerSide, attempt, nonce))) {
      // Zeros, so that the other side knows as well.
      (void)send_at_once(attempt.link.socket, std::string(kProofBytes, '\0'));
      throw other_secret(static_cast<std::uint32_t>(attempt.peer), attempt);
    }
    if (!send_at_once(attempt.link.socket, proof(kDialerSide, attempt, nonce))) {
      fail(attempt, describe_errno(errno));
      return true;
    }
  }
  establish(attempt);
  return true;
}

bool LinkMaker::advance_incoming(Attempt& attempt) {
  const std::size_t hello = kHelloBytes + (secret_ ? kNonceBytes : 0);
  std::string why;
  if (!fill(attempt.link.socket, attempt.in, attempt.claim ? kProofBytes : hello, why)) {
    if (attempt.claim) hear_soon();
    return true;
  }
  if (attempt.claim) return take_proof(attempt);
  const std::string expected = std::string(magic(secret_)) + text(own_.token);
  if (!std::string_view(attempt.in).starts_with(expected.substr(0, attempt.in.size()))) {
    refuse(attempt, "did not send this rank's token");
    return true;
  }
  return attempt.in.size() == hello && take_hello(attempt);
}

bool LinkMaker::take_hello(Attempt& attempt) {
  Claim claim{0, 0, attempt.in.substr(kHelloBytes)};
  const char* const numbers = attempt.in.data() + kHelloBytes - 2 * sizeof(claim.rank);
  std::memcpy(&claim.rank, numbers, sizeof(claim.rank));
  std::memcpy(&claim.use, numbers + sizeof(claim.rank), sizeof(claim.use));
  if (claim.rank <= static_cast<std::uint32_t>(rank_) || claim.rank >= ranks_.size() ||
      claim.use >= kUses) {
    refuse(attempt, fmt::format("claims to be rank {}, connection {}", claim.rank, claim.use));
    return true;
  }
  if (const PeerLink& taken = links_[claim.rank][claim.use]; taken.socket) {
    refuse(attempt, fmt::format("claims to be rank {}, which has already connected from {}",
                                claim.rank, taken.address.to_string()));
    return true;
  }
  std::string welcome = std::string(magic(secret_)) + text(ranks_[claim.rank].token);
  attempt.claim = claim;
  if (secret_) {
    attempt.nonce = new_nonce();
    welcome += attempt.nonce + proof(kListenerSide, attempt, claim.nonce);
    attempt.in.clear();
    return !send_at_once(attempt.link.socket, welcome);
  }
  if (!send_at_once(attempt.link.socket, welcome)) return true;
  attempt.peer = static_cast<int>(claim.rank);
  attempt.use = claim.use;
  establish(attempt);
  return true;
}

bool LinkMaker::take_proof(Attempt& attempt) {
  if (attempt.in.size() < kProofBytes) return false;
  const Claim& claim = *attempt.claim;
  if (!same_proof(attempt.in, proof(kDialerSide, attempt, claim.nonce))) {
    throw other_secret(claim.rank, attempt);
  }
  if (!links_[claim.rank][claim.use].socket) {
    attempt.peer = static_cast<int>(claim.rank);
    attempt.use = claim.use;
    establish(attempt);
  }
  return true;
}

std::string LinkMaker::proof(std::string_view side, const Attempt& attempt,
                             std::string_view peer_nonce) const {
  const bool incoming = attempt.claim.has_value();
  const auto me = static_cast<std::uint32_t>(rank_);
  const auto world = static_cast<std::uint32_t>(ranks_.size());
  if (incoming) {
    return prove(secret_, side, {attempt.claim->rank, me, attempt.claim->use, world},
                 {peer_nonce, attempt.nonce});
  }
  return prove(secret_, side,
               {me, static_cast<std::uint32_t>(attempt.peer),
                static_cast<std::uint32_t>(attempt.use), world},
               {attempt.nonce, peer_nonce});
}

void LinkMaker::establish(Attempt& attempt) {
  const int fd = attempt.link.socket.fd();
  // Incoming connections are often not registered yet, which is no error.
  ::epoll_ctl(events_.fd(), EPOLL_CTL_DEL, fd, nullptr);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  links_[static_cast<std::size_t>(attempt.peer)][attempt.use] = std::move(attempt.link);
  --missing_;
}

void LinkMaker::fail(const Attempt& attempt, const std::string& why) {
  why_[static_cast<std::size_t>(attempt.peer)] = why;
  unreached_.push_back({attempt.peer, attempt.use});
  dial_at_ = std::min(dial_at_, Clock::now() + kDialPause);
  hear_soon();
}

void LinkMaker::refuse(const Attempt& attempt, const std::string& why) {
  if (refused_.size() >= kMaxRefused) return;
  refused_.push_back(fmt::format("{} {}", attempt.link.address.to_string(), why));
}

void LinkMaker::time_out() const {
  std::vector<std::string> reasons;
  std::vector<int> absent;
  for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    const auto established = [](const PeerLink& link) { return static_cast<bool>(link.socket); };
    if (peer == rank_ || std::ranges::all_of(links_[at], established)) continue;
    if (peer > rank_) {
      absent.push_back(peer);
    } else {
      reasons.push_back(fmt::format("can't connect to rank {} at {}: {}", peer,
                                    ranks_[at].address.to_string(),
                                    why_[at].empty() ? "no answer" : why_[at]));
    }
  }
  constexpr std::size_t kMaxReasons = 3;
  if (reasons.size() > kMaxReasons) {
    reasons[kMaxReasons] = fmt::format("{} more", reasons.size() - kMaxReasons);
    reasons.resize(kMaxReasons + 1);
  }
  if (!absent.empty()) {
    reasons.push_back(fmt::format("no connection from {} {} at {}",
                                  absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "),
                                  own_.address.to_string()));
  }
  throw Error(
      ErrorCode::timeout,
      fmt::format(
          "rank {}: {} within {:g} s{}; can the machines reach one another at these "
          "addresses? THINREDUCE_INTERFACE chooses the network",
          rank_, fmt::join(reasons, "; "), deadline_.allowed.count(),
          refused_.empty() ? "" : fmt::format(" (refused: {})", fmt::join(refused_, "; "))));
}

// The other side knows the token of the meeting, so it is a rank, and waiting for another is in
// vain.
Error LinkMaker::other_secret(std::uint32_t peer, const Attempt& attempt) const {
  return Error(ErrorCode::mismatch,
               fmt::format("rank {}: rank {} at {} has another secret; {}", rank_, peer,
                           attempt.link.address.to_string(), kSameSecret));
}

Error LinkMaker::out_of_resources(int error) const {
  return Error(ErrorCode::unavailable, fmt::format("rank {}: can't connect to all {} ranks: {}",
                                                   rank_, ranks_.size(), describe_errno(error)));
}

}  // namespace thinreduce

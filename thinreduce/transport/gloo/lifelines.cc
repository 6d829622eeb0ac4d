#include "thinreduce/transport/gloo/lifelines.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/process.h"
#include "thinreduce/transport/socket.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr char kQuestion = '?';
constexpr char kAnswer = '!';
constexpr char kGoodbye = 'g';
constexpr char kNotice = 'n';

// How often the thread looks whether this rank waits. It wakes so often even in an idle process;
// waking it in every wait would cost more.
constexpr std::chrono::milliseconds kTurn{100};
// Questions per limit of silence: several, so that one late answer is no silence.
constexpr int kQuestionsPerLimit = 8;
constexpr Seconds kLongestInterval{1};
// The longest time that a rank that leaves waits until its peers have read its last message.
constexpr std::chrono::seconds kLastWords{1};
// Stands for the alarm where other events have the number of a peer.
constexpr std::uint64_t kAlarm = ~std::uint64_t{0};

Error no_descriptor(int rank) {
  return Error(ErrorCode::unavailable, fmt::format("rank {}: can't watch its connections: {}", rank,
                                                   describe_errno(errno)));
}

}  // namespace

Lifelines::Lifelines(int rank, std::vector<Socket> connections, Events events)
    : rank_(rank),
      events_(std::move(events)),
      peers_(connections.size()),
      last_turn_(Clock::now()),
      attentive_since_(last_turn_),
      alarm_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      watched_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!alarm_ || !watched_) throw no_descriptor(rank);
  watch(alarm_.fd(), kAlarm);
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    peers_[peer].heard = last_turn_;
    if (connections[peer]) watch(connections[peer].fd(), peer);
  }
  // Nothing fails from here on.
  close_in_children(alarm_.fd());
  close_in_children(watched_.fd());
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!connections[peer]) continue;
    peers_[peer].socket = connections[peer].release();
    close_in_children(peers_[peer].socket);
  }
  thread_ = std::thread([this] { run(); });
}

Lifelines::~Lifelines() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    close_by_ = Clock::now() + kLastWords;
    for (const Peer& peer : peers_) {
      if (peer.socket >= 0) ::shutdown(peer.socket, SHUT_WR);
    }
  }
  const std::uint64_t one = 1;
  static_cast<void>(::write(alarm_.fd(), &one, sizeof(one)) < 0);
  thread_.join();
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close_here(peer.socket);
  }
  close_here(watched_.release());
  close_here(alarm_.release());
}

void Lifelines::watch(int fd, std::uint64_t who) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = who;
  if (::epoll_ctl(watched_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) throw no_descriptor(rank_);
}

void Lifelines::begin_wait(const void* who, int peer, Seconds silence) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (waits_.empty()) asked_ = now;
  waits_.push_back({who, peer, silence, now});
}

void Lifelines::end_wait(const void* who) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(waits_, who, &Wait::who);
  if (found != waits_.end()) waits_.erase(found);
}

int Lifelines::blocked_by(int peer) {
  const std::lock_guard lock(mutex_);
  int at = peer;
  // A circle of ranks that wait for one another has no end: then it is the nearest.
  for (std::size_t hop = 0; hop < peers_.size(); ++hop) {
    const int next = peers_[static_cast<std::size_t>(at)].waits_for;
    if (next == rank_) return peer;
    if (next < 0) return at;
    at = next;
  }
  return peer;
}

void Lifelines::say_goodbye() noexcept {
  send_last({kGoodbye});
}

void Lifelines::give_notice(const std::string& text) noexcept {
  try {
    std::vector<char> message(1 + kNoticeBytes, 0);
    message[0] = kNotice;
    std::memcpy(message.data() + 1, text.data(), std::min(text.size(), kNoticeBytes - 1));
    send_last(message);
  } catch (const std::exception&) {
    // Out of memory; the peers see that the connections close.
  }
}

void Lifelines::send_last(const std::vector<char>& message) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(last_sent_, true)) return;
  for (Peer& peer : peers_) send(peer, message.data(), message.size());
}

// Messages are few and short: they fit into the socket's buffer unless the peer has read nothing
// for very long. Then it misses a question, which it could not answer anyway.
void Lifelines::send(Peer& peer, const char* bytes, std::size_t size) noexcept {
  if (peer.socket < 0) return;
  static_cast<void>(::send(peer.socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0);
}

void Lifelines::run() {
  std::vector<Event> events;
  for (;;) {
    poll_once(events);
    // Without the lock: the events take other locks and may come back to these lifelines.
    for (const Event& event : events) event();
    events.clear();
    const std::lock_guard lock(mutex_);
    const bool all_closed =
        std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.socket < 0; });
    if (closing_ && (all_closed || Clock::now() >= close_by_)) return;
  }
}

void Lifelines::poll_once(std::vector<Event>& events) {
  std::array<epoll_event, 64> ready;
  const int count =
      ::epoll_wait(watched_.fd(), ready.data(), ready.size(), static_cast<int>(kTurn.count()));
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t who = ready[static_cast<std::size_t>(i)].data.u64;
    if (who == kAlarm) {
      std::uint64_t rung = 0;
      static_cast<void>(::read(alarm_.fd(), &rung, sizeof(rung)) < 0);
    } else {
      read(static_cast<int>(who), events);
    }
  }
  look_for_silence(events);
}

void Lifelines::read(int rank, std::vector<Event>& events) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::array<char, 4096> buffer;
  while (peer.socket >= 0) {
    const auto count = ::recv(peer.socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) {
      end(rank, count == 0 ? "its connection closed" : describe_errno(errno), events);
      return;
    }
    peer.heard = Clock::now();
    peer.unread.insert(peer.unread.end(), buffer.data(), buffer.data() + count);
    while (const std::size_t length = take(rank, events)) {
      peer.unread.erase(peer.unread.begin(),
                        peer.unread.begin() + static_cast<std::ptrdiff_t>(length));
    }
  }
}

std::size_t Lifelines::take(int rank, std::vector<Event>& events) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.unread.empty() || peer.socket < 0) return 0;
  const auto body = std::as_bytes(std::span(peer.unread)).subspan(1);
  switch (peer.unread[0]) {
    case kQuestion: {
      std::array<std::byte, 1 + sizeof(std::int32_t)> answer{std::byte{kAnswer}};
      const std::int32_t waits_for = waits_.empty() ? -1 : waits_.front().peer;
      store_value(std::span(answer).subspan(1), 0, waits_for);
      send(peer, reinterpret_cast<const char*>(answer.data()), answer.size());
      return 1;
    }
    case kAnswer: {
      if (body.size() < sizeof(std::int32_t)) return 0;
      const auto waits_for = load_value<std::int32_t>(body, 0);
      const bool known = waits_for >= 0 && waits_for < static_cast<int>(peers_.size());
      peer.waits_for = known ? waits_for : -1;
      return 1 + sizeof(std::int32_t);
    }
    case kGoodbye:
      peer.leaving = true;
      events.emplace_back([this, rank] { events_.leaves(rank); });
      return 1;
    case kNotice: {
      if (body.size() < kNoticeBytes) return 0;
      peer.leaving = true;
      const auto* text = reinterpret_cast<const char*>(body.data());
      events.emplace_back([this, rank, notice = std::string(text, ::strnlen(text, kNoticeBytes))] {
        events_.gave_up(rank, notice);
      });
      return 1 + kNoticeBytes;
    }
    default:
      end(rank,
          fmt::format("it sent an invalid message ({:#x})",
                      static_cast<unsigned char>(peer.unread[0])),
          events);
      return 0;
  }
}

void Lifelines::end(int rank, const std::string& why, std::vector<Event>& events) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  close_here(std::exchange(peer.socket, -1));
  if (peer.leaving || closing_) return;
  events.emplace_back([this, rank, why] { events_.died(rank, why); });
}

void Lifelines::look_for_silence(std::vector<Event>& events) {
  const auto now = Clock::now();
  const auto pause = now - std::exchange(last_turn_, now);
  if (waits_.empty() || closing_) return;
  const Wait& wait = waits_.front();
  // If this process itself was stopped or starved, answers may lie unread: no peer is to blame.
  if (pause > wait.silence / 4 && pause > 3 * kTurn) attentive_since_ = now;
  if (now - asked_ > std::min(wait.silence / kQuestionsPerLimit, kLongestInterval)) {
    asked_ = now;
    for (Peer& peer : peers_) send(peer, &kQuestion, 1);
  }
  std::vector<int> silent;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.socket < 0 || peer.leaving) continue;
    if (now - std::max({peer.heard, wait.began, attentive_since_}) > wait.silence) {
      silent.push_back(static_cast<int>(rank));
    }
  }
  if (silent.empty()) return;
  events.emplace_back([this, silent, limit = wait.silence] { events_.silent(silent, limit); });
  waits_.clear();
}

}  // namespace thinreduce

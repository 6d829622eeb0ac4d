#include "thinreduce/transport/gloo/connect_lifelines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/process.h"
#include "thinreduce/transport/socket.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using std::chrono::milliseconds;

// The first message of the rank that connects: the secret of the rank that listens, and its own
// rank.
constexpr std::size_t kHelloBytes = 8 + 4;
using Hello = std::array<std::byte, kHelloBytes>;

Hello hello(std::uint64_t secret, int rank) {
  Hello bytes;
  store_value(std::span(bytes), 0, secret);
  store_value(std::span(bytes), 8, static_cast<std::int32_t>(rank));
  return bytes;
}

// A connection that has not said who it is.
struct Caller {
  Socket socket;
  Hello hello;
  std::size_t read = 0;
};

class Connector {
 public:
  Connector(const LifelineMeeting& meeting, gloo::rendezvous::Store& store)
      : meeting_(meeting), store_(store), found_(static_cast<std::size_t>(meeting.world)) {}

  std::vector<int> run() {
    listen();
    for (int peer = 0; peer < meeting_.rank; ++peer) connect(peer);
    while (missing() > 0) accept_some();
    std::vector<int> sockets;
    for (Socket& socket : found_) sockets.push_back(socket.release());
    return sockets;
  }

 private:
  [[noreturn]] void fail(const std::string& what, int error) const {
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {}: {}: {}", meeting_.rank, what, describe_errno(error)));
  }

  [[nodiscard]] int milliseconds_left() const {
    const auto left = std::chrono::ceil<milliseconds>(meeting_.deadline.at - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
  }

  [[nodiscard]] static std::string key(int rank) { return fmt::format("lifeline/{}", rank); }

  // Publishes this rank's secret, port and host.
  void listen() {
    std::string why;
    const auto addresses = resolve(meeting_.host, 0, why);
    if (addresses.empty()) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank {}: no address for {}: {}", meeting_.rank, meeting_.host, why));
    }
    SocketAddress own = addresses[0];
    listener_ = Socket(::socket(own.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener_ || ::bind(listener_.fd(), own.get(), own.length) != 0 ||
        ::listen(listener_.fd(), meeting_.world) != 0 ||
        ::getsockname(listener_.fd(), own.get(), &own.length) != 0) {
      fail(fmt::format("can't listen at {}", meeting_.host), errno);
    }
    if (::getrandom(&secret_, sizeof(secret_), 0) != sizeof(secret_)) fail("getrandom", errno);
    std::vector<char> value(sizeof(secret_) + sizeof(std::uint16_t));
    const auto bytes = std::as_writable_bytes(std::span(value));
    store_value(bytes, 0, secret_);
    store_value(bytes, 8, own.port());
    value.insert(value.end(), meeting_.host.begin(), meeting_.host.end());
    store_.set(key(meeting_.rank), value);
  }

  void connect(int peer) {
    store_.wait({key(peer)}, milliseconds(std::max(milliseconds_left(), 1)));
    const std::vector<char> value = store_.get(key(peer));
    if (value.size() <= 10) {
      throw Error(ErrorCode::bad_frame, fmt::format("rank {}: the address of rank {} has {} bytes",
                                                    meeting_.rank, peer, value.size()));
    }
    const auto bytes = std::as_bytes(std::span(value));
    const auto secret = load_value<std::uint64_t>(bytes, 0);
    const auto port = load_value<std::uint16_t>(bytes, 8);
    const std::string host(value.begin() + 10, value.end());
    std::string why = "no address";
    for (const SocketAddress& address : resolve(host, port, why)) {
      Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!socket) fail("no socket", errno);
      int error = ::connect(socket.fd(), address.get(), address.length) == 0 ? 0 : errno;
      if (error == EINPROGRESS) error = finish_connecting(socket);
      const Hello first = hello(secret, meeting_.rank);
      if (error == 0 && ::send(socket.fd(), first.data(), first.size(), MSG_NOSIGNAL) !=
                            static_cast<ssize_t>(first.size())) {
        error = errno;
      }
      if (error == 0) {
        keep(peer, std::move(socket));
        return;
      }
      why = describe_errno(error);
    }
    throw Error(ErrorCode::timeout,
                fmt::format("rank {}: can't connect to rank {} at {}: {}", meeting_.rank, peer,
                            host_and_port(host, port), why));
  }

  // Returns the error of a connection in progress, 0 when it is there.
  [[nodiscard]] int finish_connecting(const Socket& socket) const {
    pollfd writable{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    int ready = 0;
    do {
      ready = ::poll(&writable, 1, milliseconds_left());
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof(error);
    return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
  }

  void keep(int peer, Socket socket) {
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    found_[static_cast<std::size_t>(peer)] = std::move(socket);
  }

  [[nodiscard]] std::ptrdiff_t missing() const {
    return std::count_if(found_.begin() + meeting_.rank + 1, found_.end(),
                         [](const Socket& socket) { return !socket; });
  }

  // Waits for connections and for what their ranks say.
  void accept_some() {
    std::vector<pollfd> polled{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Caller& caller : callers_) {
      polled.push_back({.fd = caller.socket.fd(), .events = POLLIN, .revents = 0});
    }
    const int ready = ::poll(polled.data(), polled.size(), milliseconds_left());
    if (ready < 0 && errno != EINTR) fail("poll", errno);
    if (ready == 0) throw_missing();
    for (std::size_t i = callers_.size(); i-- > 0;) {
      if (polled[i + 1].revents != 0 && !hear(callers_[i])) {
        callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (polled[0].revents == 0) return;
    Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      callers_.push_back({std::move(socket), {}, 0});
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      fail("accept", errno);
    }
  }

  // Returns whether the caller has not finished its hello.
  bool hear(Caller& caller) {
    const auto rest = std::span(caller.hello).subspan(caller.read);
    const auto count = ::recv(caller.socket.fd(), rest.data(), rest.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    caller.read += static_cast<std::size_t>(count);
    if (caller.read < kHelloBytes) return true;
    const auto rank = load_value<std::int32_t>(std::span(caller.hello), 8);
    const bool welcome = load_value<std::uint64_t>(std::span(caller.hello), 0) == secret_ &&
                         rank > meeting_.rank && rank < meeting_.world &&
                         !found_[static_cast<std::size_t>(rank)];
    if (welcome) keep(rank, std::move(caller.socket));
    return false;
  }

  [[noreturn]] void throw_missing() const {
    std::vector<int> ranks;
    for (int rank = meeting_.rank + 1; rank < meeting_.world; ++rank) {
      if (!found_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    throw Error(ErrorCode::timeout,
                fmt::format("rank {}: {} {} did not connect within {:g} s", meeting_.rank,
                            ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                            meeting_.deadline.allowed.count()));
  }

  const LifelineMeeting& meeting_;
  gloo::rendezvous::Store& store_;
  Socket listener_;
  std::uint64_t secret_ = 0;
  std::vector<Socket> found_;  // by rank
  std::vector<Caller> callers_;
};

}  // namespace

std::vector<int> connect_lifelines(const LifelineMeeting& meeting, gloo::rendezvous::Store& store) {
  std::vector<int> sockets = Connector(meeting, store).run();
  for (const int fd : sockets) {
    if (fd >= 0) close_in_children(fd);
  }
  return sockets;
}

}  // namespace thinreduce

#include "thinreduce/transport/gloo/tcp_store.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "thinreduce/ensure.h"
#include "thinreduce/transport/gloo/tcp_store_server.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

using namespace store_protocol;

// The pause before an address that refused is tried again, and the wait for one that is silent.
constexpr std::chrono::milliseconds kRetryPause{50};
constexpr std::chrono::seconds kSilentPatience{3};
// Pauses between requests for a value that does not exist yet.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};
constexpr std::chrono::seconds kAnswerPatience{1};
// Long enough for all clients to ask once more.
constexpr auto kFarewell = 5 * kLongestPause;

int milliseconds_until(Clock::time_point at) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

bool ready(const Socket& socket, short events, Clock::time_point until) {
  for (;;) {
    pollfd polled{socket.fd(), events, 0};
    const int count = ::poll(&polled, 1, milliseconds_until(until));
    if (count > 0) return true;
    if (count == 0 && Clock::now() >= until) return false;
    if (count < 0 && errno != EINTR) return false;
  }
}

// Returns an empty socket, with errno in `error`, if there is no connection by `until`.
Socket try_connect(const SocketAddress& address, Clock::time_point until, int& error) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket && ::connect(socket.fd(), address.get(), address.length) == 0) return socket;
  error = errno;
  if (!socket || error != EINPROGRESS) return {};
  error = ETIMEDOUT;
  if (!ready(socket, POLLOUT, until)) return {};
  socklen_t length = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return {};
  return socket;
}

// Thrown when the connection to rank 0 ends; the caller decides whether to try again.
struct Disconnected {};

}  // namespace

class TcpStore::Client {
 public:
  Client(const TcpStoreOptions& options, const Deadline& deadline)
      : me_(fmt::format("rank {}", options.rank)) {
    // Rank 0 connects to itself, whatever interface master_addr names.
    const std::string host = options.rank == 0 ? "localhost" : options.master_addr;
    int error = 0;
    std::string why;
    bool disconnected = false;
    for (;;) {
      for (const SocketAddress& address : resolve(host, options.master_port, why)) {
        socket_ =
            try_connect(address, std::min(deadline.at, Clock::now() + kSilentPatience), error);
        if (!socket_) continue;
        const int on = 1;
        ::setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        try {
          say_hello(options, deadline);
          return;
        } catch (const Disconnected&) {
          // Not rank 0 of this world (yet): a proxy, or an earlier run that is ending.
          disconnected = true;
        }
      }
      if (Clock::now() + kRetryPause >= deadline.at) break;
      std::this_thread::sleep_for(kRetryPause);
    }
    if (disconnected) {
      why = "the server there is not rank 0 of a thinreduce world";
    } else if (why.empty()) {
      why = describe_errno(error);
    }
    throw Error(
        ErrorCode::timeout,
        fmt::format("{}: no server answers at {} after {:g} s ({}); is rank 0 running there "
                    "and is the port open?",
                    me_, host_and_port(options.master_addr, options.master_port),
                    deadline.allowed.count(), why));
  }

  // Returns the reply to one request, or nothing if there is no such key.
  std::optional<std::vector<char>> ask(std::uint8_t what, const std::string& key,
                                       const std::vector<char>& value, const Deadline& deadline) {
    ensure(!key.empty() && key.size() <= kMaxKey && value.size() <= kMaxValue,
           "the store must be able to take the key and the value", key.size(), value.size());
    const auto key_length = static_cast<std::uint16_t>(key.size());
    const auto value_length = static_cast<std::uint32_t>(value.size());
    std::vector<char> request(kRequestBytes);
    request[0] = static_cast<char>(what);
    std::memcpy(request.data() + 1, &key_length, sizeof(key_length));
    std::memcpy(request.data() + 3, &value_length, sizeof(value_length));
    request.insert(request.end(), key.begin(), key.end());
    request.insert(request.end(), value.begin(), value.end());
    try {
      send_all(request, deadline);
      return receive_reply(deadline);
    } catch (const Disconnected&) {
      throw Error(ErrorCode::lost_peer,
                  fmt::format("{}: rank 0 left while the ranks were still meeting", me_));
    }
  }

 private:
  void say_hello(const TcpStoreOptions& options, const Deadline& deadline) {
    std::vector<char> hello(kMagic, kMagic + kMagicBytes);
    for (const int number : {options.rank, options.world}) {
      const auto value = static_cast<std::uint32_t>(number);
      const auto* const bytes = reinterpret_cast<const char*>(&value);
      hello.insert(hello.end(), bytes, bytes + sizeof(value));
    }
    send_all(hello, deadline);
    receive_reply(deadline);
  }

  void send_all(const std::vector<char>& bytes, const Deadline& deadline) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const auto count =
          ::send(socket_.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count >= 0) {
        sent += static_cast<std::size_t>(count);
      } else if (errno == EAGAIN) {
        await(POLLOUT, deadline);
      } else if (errno != EINTR) {
        throw Disconnected();
      }
    }
  }

  // Receives until in_ has `count` bytes.
  void receive_at_least(std::size_t count, const Deadline& deadline) {
    while (in_.size() < count) {
      const std::size_t had = in_.size();
      in_.resize(count);
      const auto got = ::recv(socket_.fd(), in_.data() + had, count - had, 0);
      const int error = errno;
      in_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got > 0) continue;
      if (got < 0 && error == EAGAIN) {
        await(POLLIN, deadline);
      } else if (got == 0 || error != EINTR) {
        throw Disconnected();
      }
    }
  }

  std::optional<std::vector<char>> receive_reply(const Deadline& deadline) {
    receive_at_least(kReplyBytes, deadline);
    const auto status = static_cast<std::uint8_t>(in_[0]);
    std::uint32_t length = 0;
    std::memcpy(&length, in_.data() + 1, sizeof(length));
    if (status > kOver || length > kMaxValue) throw Disconnected();
    receive_at_least(kReplyBytes + length, deadline);
    std::vector<char> value(in_.begin() + kReplyBytes, in_.end());
    in_.clear();
    if (status == kDone) return value;
    if (status == kAbsent) return std::nullopt;
    const std::string reason(value.begin(), value.end());
    if (status == kOver) throw Error(ErrorCode::timeout, fmt::format("{}: {}", me_, reason));
    throw Error(ErrorCode::mismatch, fmt::format("{}: rejected by rank 0: {}", me_, reason));
  }

  void await(short events, const Deadline& deadline) {
    if (ready(socket_, events, deadline.at)) return;
    throw Error(ErrorCode::timeout, fmt::format("{}: no answer from rank 0 within {:g} s", me_,
                                                deadline.allowed.count()));
  }

  std::string me_;
  Socket socket_;
  std::vector<char> in_;
};

TcpStore::TcpStore(const TcpStoreOptions& options)
    : options_(options), deadline_(Deadline::after(options.timeout)) {
  if (options.rank == 0) {
    server_ = std::make_unique<TcpStoreServer>(options.world, options.master_port);
  }
  client_ = std::make_unique<Client>(options_, deadline_);
}

TcpStore::~TcpStore() = default;

void TcpStore::set(const std::string& key, const std::vector<char>& value) {
  client_->ask(store_protocol::kSet, key, value, deadline_);
}

std::optional<std::vector<char>> TcpStore::find(const std::string& key, const Deadline& deadline) {
  auto pause = kFirstPause;
  for (;;) {
    // `deadline` is for the value to appear; an answer always takes only a moment.
    Deadline answer = deadline_;
    answer.at = std::max(answer.at, Clock::now() + kAnswerPatience);
    if (auto value = client_->ask(store_protocol::kGet, key, {}, answer)) return value;
    if (Clock::now() >= deadline.at) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

std::vector<char> TcpStore::get_by(const std::string& key, const Deadline& deadline) {
  if (auto value = find(key, deadline)) return *std::move(value);
  throw Error(ErrorCode::timeout, fmt::format("rank {}: no rank stored \"{}\" within {:g} s",
                                              options_.rank, key, deadline.allowed.count()));
}

std::vector<char> TcpStore::get(const std::string& key) {
  return get_by(key, deadline_);
}

void TcpStore::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) get(key);
}

void TcpStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  Deadline deadline = Deadline::after(timeout);
  deadline.at = std::min(deadline.at, deadline_.at);
  for (const std::string& key : keys) get_by(key, deadline);
}

void TcpStore::give_up(const std::string& reason) {
  if (!server_) return;
  server_->give_up(reason);
  std::this_thread::sleep_for(kFarewell);
}

std::string TcpStore::rejected() const {
  return server_ ? server_->rejected() : "";
}

}  // namespace thinreduce

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
// The server answers a request at the request's own deadline at the latest; a network or a machine
// that is busy may take this much longer.
constexpr std::chrono::seconds kAnswerPatience{2};

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
      : me_(fmt::format("rank {}", options.rank)),
        server_(host_and_port(options.master_addr, options.master_port)) {
    int error = 0;
    std::string why;
    bool disconnected = false;
    for (;;) {
      for (const SocketAddress& address : resolve(options.master_addr, options.master_port, why)) {
        socket_ =
            try_connect(address, std::min(deadline.at, Clock::now() + kSilentPatience), error);
        if (!socket_ && out_of_descriptors(error)) {
          throw Error(ErrorCode::unavailable,
                      fmt::format("{}: can't connect to rank 0: {}", me_, describe_errno(error)));
        }
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
                    me_, server_, deadline.allowed.count(), why));
  }

  void post(const std::string& topic, const std::vector<char>& value, const Deadline& deadline) {
    ask(kPost, topic, value, deadline);
  }

  std::optional<std::vector<char>> read(int rank, const std::string& topic,
                                        const Deadline& deadline) {
    std::vector<char> what;
    append(what, static_cast<std::uint32_t>(rank));
    append(what, static_cast<std::uint32_t>(milliseconds_until(deadline.at)));
    return ask(kRead, topic, what, deadline);
  }

 private:
  // Returns the reply to one request, or nothing if there is no such value.
  std::optional<std::vector<char>> ask(std::uint8_t kind, const std::string& topic,
                                       const std::vector<char>& value, const Deadline& deadline) {
    ensure(!topic.empty() && topic.size() <= kMaxTopic && value.size() <= kMaxValue,
           "the store must be able to take the topic and the value", topic.size(), value.size());
    std::vector<char> request;
    append(request, kind);
    append(request, static_cast<std::uint16_t>(topic.size()));
    append(request, static_cast<std::uint32_t>(value.size()));
    request.insert(request.end(), topic.begin(), topic.end());
    request.insert(request.end(), value.begin(), value.end());
    Deadline answer = deadline;
    answer.at = std::max(deadline.at, Clock::now()) + kAnswerPatience;
    try {
      send_all(request, answer);
      return receive_reply(answer);
    } catch (const Disconnected&) {
      throw Error(ErrorCode::lost_peer,
                  fmt::format("{}: rank 0 left while the ranks were still meeting", me_));
    }
  }

  void say_hello(const TcpStoreOptions& options, const Deadline& deadline) {
    const char* const magic = options.secret ? kSecretMagic : kMagic;
    Challenge challenge{static_cast<std::uint32_t>(options.rank),
                        static_cast<std::uint32_t>(options.world), "", ""};
    std::vector<char> hello(magic, magic + kMagicBytes);
    append(hello, challenge.rank);
    append(hello, challenge.world);
    if (options.secret) {
      challenge.client_nonce = new_nonce();
      hello.insert(hello.end(), challenge.client_nonce.begin(), challenge.client_nonce.end());
    }
    send_all(hello, deadline);
    const auto answer = receive_reply(deadline);
    if (options.secret) answer_challenge(options.secret, challenge, answer, deadline);
  }

  // Believes rank 0 if it has proved the secret, and proves it in turn.
  void answer_challenge(const Secret& secret, Challenge& challenge,
                        const std::optional<std::vector<char>>& answer, const Deadline& deadline) {
    if (!answer || answer->size() != kNonceBytes + kProofBytes) throw Disconnected();
    const std::string_view text(answer->data(), answer->size());
    challenge.server_nonce = text.substr(0, kNonceBytes);
    const bool proved =
        same_proof(text.substr(kNonceBytes), challenge.proof(secret, Challenge::kServer));
    // Without a proof by rank 0, the zeros let it name this rank.
    const std::string own =
        proved ? challenge.proof(secret, Challenge::kClient) : std::string(kProofBytes, '\0');
    send_all({own.begin(), own.end()}, deadline);
    if (!proved) {
      throw Error(ErrorCode::mismatch, fmt::format("{}: rank 0 at {} has another secret; {}", me_,
                                                   server_, kSameSecret));
    }
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
    if (status > kAbsent || length > kMaxValue) throw Disconnected();
    receive_at_least(kReplyBytes + length, deadline);
    std::vector<char> value(in_.begin() + kReplyBytes, in_.end());
    in_.clear();
    if (status == kDone) return value;
    if (status == kAbsent) return std::nullopt;
    const std::string reason(value.begin(), value.end());
    throw Error(ErrorCode::mismatch, fmt::format("{}: rejected by rank 0: {}", me_, reason));
  }

  void await(short events, const Deadline& deadline) {
    if (ready(socket_, events, deadline.at)) return;
    throw Error(ErrorCode::timeout,
                fmt::format("{}: no answer from rank 0 at {} within {:g} s; its process is stopped "
                            "or its machine is unreachable",
                            me_, server_, deadline.allowed.count()));
  }

  std::string me_;
  std::string server_;
  Socket socket_;
  std::vector<char> in_;
};

TcpStore::TcpStore(const TcpStoreOptions& options, const Deadline& deadline)
    : options_(options), deadline_(deadline) {
  if (options.rank == 0) {
    server_ = std::make_unique<TcpStoreServer>(options.world, options.master_addr,
                                               options.master_port, options.secret);
  } else {
    client_ = std::make_unique<Client>(options_, deadline_);
  }
}

TcpStore::~TcpStore() = default;

void TcpStore::post(const std::string& topic, const std::vector<char>& value) {
  if (server_) {
    server_->post(topic, value);
  } else {
    client_->post(topic, value, deadline_);
  }
}

std::optional<std::vector<char>> TcpStore::read(int rank, const std::string& topic,
                                                const Deadline& deadline) {
  return server_ ? server_->read(rank, topic, deadline) : client_->read(rank, topic, deadline);
}

std::string TcpStore::remark() const {
  return server_ ? server_->remark() : "";
}

void TcpStore::finish(const Deadline& deadline) {
  if (server_) server_->finish(deadline);
}

}  // namespace thinreduce

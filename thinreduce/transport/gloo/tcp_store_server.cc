#include "thinreduce/transport/gloo/tcp_store_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

using namespace store_protocol;

// A rank sends its hello at once; a client that is silent for this long is not a rank.
constexpr std::chrono::seconds kHelloPatience{10};
// Clients in addition to the ranks: strangers, and ranks that retry.
constexpr std::size_t kSpareClients = 64;
// Joining, leaving and Gloo's two meshes need about six values per rank.
constexpr std::size_t kMaxValuesPerRank = 16;
// Keeps the error readable if there were many strangers.
constexpr std::size_t kMaxRejected = 4;

template <typename T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void reply(std::vector<char>& out, std::uint8_t status, const char* data, std::size_t length) {
  const auto size = static_cast<std::uint32_t>(length);
  out.push_back(static_cast<char>(status));
  out.insert(out.end(), reinterpret_cast<const char*>(&size),
             reinterpret_cast<const char*>(&size) + sizeof(size));
  out.insert(out.end(), data, data + length);
}

// Listens on all interfaces with IPv6 and IPv4; only with IPv4 if the kernel has no IPv6.
Socket listen_on(std::uint16_t port) {
  int error = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) {
      error = errno;
      continue;
    }
    const int on = 1;
    const int off = 0;
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    SocketAddress any;
    if (family == AF_INET6) {
      ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(port);
      std::memcpy(&any.storage, &address, sizeof(address));
      any.length = sizeof(address);
    } else {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      std::memcpy(&any.storage, &address, sizeof(address));
      any.length = sizeof(address);
    }
    if (::bind(socket.fd(), any.get(), any.length) == 0 && ::listen(socket.fd(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("rank 0: can't listen on port {}: {}; choose another MASTER_PORT", port,
                          describe_errno(error)));
}

}  // namespace

TcpStoreServer::TcpStoreServer(int world, std::uint16_t port)
    : world_(world),
      listener_(listen_on(port)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { serve(); }) {}

TcpStoreServer::~TcpStoreServer() {
  stop_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof(one));
  thread_.join();
}

std::string TcpStoreServer::rejected() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("{}", fmt::join(rejected_, "; "));
}

void TcpStoreServer::give_up(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  given_up_ = reason;
}

void TcpStoreServer::serve() {
  std::vector<pollfd> polled;
  while (!stop_) {
    polled.clear();
    polled.push_back({wake_.fd(), POLLIN, 0});
    polled.push_back({listener_.fd(), POLLIN, 0});
    for (const Client& client : clients_) {
      // No request is read from a client that does not read its reply: this bounds the memory
      // per client.
      const short events = client.out.empty() ? POLLIN : POLLOUT;
      polled.push_back({client.socket.fd(), events, 0});
    }
    // At least once per second, to disconnect silent clients.
    if (::poll(polled.data(), polled.size(), 1000) < 0 && errno != EINTR) return;

    const auto now = Clock::now();
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      const short events = polled[i + 2].revents;
      bool stays = true;
      if (events & POLLOUT) stays = write_to(client);
      if (stays && (events & POLLIN)) stays = read_from(client);
      if (events & (POLLERR | POLLHUP | POLLNVAL) && !(events & POLLIN)) stays = false;
      if (client.rank < 0 && now - client.since > kHelloPatience) stays = false;
      if (!stays || (client.leaving && client.out.empty())) client.socket = Socket();
    }
    std::erase_if(clients_, [](const Client& client) { return !client.socket; });
    if (polled[1].revents & POLLIN) accept_one();
  }
}

void TcpStoreServer::accept_one() {
  SocketAddress from;
  from.length = sizeof(from.storage);
  Socket socket(::accept4(listener_.fd(), from.get(), &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return;
  if (clients_.size() >= static_cast<std::size_t>(world_) + kSpareClients) {
    // Ranks send their hello at once, so the oldest silent client is the least likely rank.
    const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                     [](const Client& client) { return client.rank < 0; });
    if (oldest == clients_.end()) return;
    clients_.erase(oldest);
  }
  Client client;
  client.socket = std::move(socket);
  client.name = from.host();
  client.since = Clock::now();
  clients_.push_back(std::move(client));
}

bool TcpStoreServer::read_from(Client& client) {
  std::array<char, 16384> bytes;
  const auto got = ::recv(client.socket.fd(), bytes.data(), bytes.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  client.in.insert(client.in.end(), bytes.data(), bytes.data() + got);
  return take_requests(client);
}

bool TcpStoreServer::write_to(Client& client) {
  const auto sent = ::send(client.socket.fd(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  client.out.erase(client.out.begin(), client.out.begin() + sent);
  // Requests that arrived after the one just answered.
  return !client.out.empty() || take_requests(client);
}

bool TcpStoreServer::take_requests(Client& client) {
  while (client.out.empty() && !client.leaving) {
    std::vector<char>& in = client.in;
    if (client.rank < 0) {
      const std::size_t known = std::min(in.size(), kMagicBytes);
      if (std::memcmp(in.data(), kMagic, known) != 0) return false;
      if (in.size() < kHelloBytes) return true;
      greet(client, load<std::uint32_t>(in.data() + kMagicBytes),
            load<std::uint32_t>(in.data() + kMagicBytes + 4));
      in.erase(in.begin(), in.begin() + kHelloBytes);
      continue;
    }
    if (in.size() < kRequestBytes) return true;
    const auto what = static_cast<std::uint8_t>(in[0]);
    const std::size_t key_length = load<std::uint16_t>(in.data() + 1);
    const std::size_t value_length = load<std::uint32_t>(in.data() + 3);
    if (what != kSet && what != kGet) return false;
    if (key_length == 0 || key_length > kMaxKey || value_length > kMaxValue) return false;
    if (what == kGet && value_length != 0) return false;
    const std::size_t length = kRequestBytes + key_length + value_length;
    if (in.size() < length) return true;
    const char* const key_at = in.data() + kRequestBytes;
    const std::string key(key_at, key_length);
    std::vector<char> value(key_at + key_length, key_at + key_length + value_length);
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(length));
    if (what == kSet) {
      if (!store(client, key, std::move(value))) return false;
    } else if (const auto found = values_.find(key); found != values_.end()) {
      reply(client.out, kDone, found->second.data(), found->second.size());
    } else {
      const std::lock_guard lock(mutex_);
      reply(client.out, given_up_.empty() ? kAbsent : kOver, given_up_.data(), given_up_.size());
    }
  }
  return true;
}

void TcpStoreServer::greet(Client& client, std::uint32_t rank, std::uint32_t world) {
  const auto size = static_cast<std::uint32_t>(world_);
  std::string reason;
  if (world != size) {
    reason = fmt::format("rank {} at {} has world size {}, rank 0 has {}", rank, client.name, world,
                         size);
  } else if (rank >= size) {
    reason = fmt::format("rank {} at {} is not in a world of {}", rank, client.name, size);
  } else {
    for (const Client& other : clients_) {
      if (other.rank == static_cast<int>(rank) && other.socket) {
        reason =
            fmt::format("rank {} at {} has already joined from {}", rank, client.name, other.name);
      }
    }
  }
  if (reason.empty()) {
    client.rank = static_cast<int>(rank);
    reply(client.out, kDone, nullptr, 0);
    return;
  }
  reply(client.out, store_protocol::kRejected, reason.data(), reason.size());
  client.leaving = true;
  const std::lock_guard lock(mutex_);
  if (rejected_.size() < kMaxRejected) rejected_.push_back(std::move(reason));
}

bool TcpStoreServer::store(Client& client, const std::string& key, std::vector<char> value) {
  if (values_.size() >= static_cast<std::size_t>(world_) * kMaxValuesPerRank &&
      !values_.contains(key)) {
    return false;
  }
  values_[key] = std::move(value);
  reply(client.out, kDone, nullptr, 0);
  return true;
}

}  // namespace thinreduce

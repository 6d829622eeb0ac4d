#include "thinreduce/transport/gloo/tcp_store_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/addresses.h"

namespace thinreduce {
namespace {

using namespace store_protocol;

// A rank sends its hello at once; a client that is silent for this long is not a rank.
constexpr std::chrono::seconds kHelloPatience{10};
// Clients in addition to the ranks: strangers, and ranks that retry.
constexpr std::size_t kSpareClients = 64;
constexpr int kAcceptsAtOnce = 64;
// A meeting needs three.
constexpr std::size_t kMaxTopicsPerRank = 16;
// Keeps the error readable if there were many strangers.
constexpr std::size_t kMaxRemarks = 4;
// The pause before connections are accepted again after file descriptors ran out.
constexpr std::chrono::milliseconds kStarvedPause{100};

template <typename T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename Bytes>
void reply(std::vector<char>& out, std::uint8_t status, const Bytes& bytes) {
  append(out, status);
  append(out, static_cast<std::uint32_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Socket listen_for_ranks(const std::string& host, std::uint16_t port) {
  int error = 0;
  for (SocketAddress address : listening_addresses(host)) {
    address.set_port(port);
    if (Socket socket = listen_at(address, error)) return socket;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("rank 0: can't listen on port {}: {}; choose another MASTER_PORT", port,
                          describe_errno(error)));
}

}  // namespace

TcpStoreServer::TcpStoreServer(int world, const std::string& host, std::uint16_t port,
                               const Secret& secret)
    : world_(world),
      secret_(secret),
      listener_(listen_for_ranks(host, port)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      taken_(static_cast<std::size_t>(world)),
      thread_([this] { serve(); }) {}

TcpStoreServer::~TcpStoreServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void TcpStoreServer::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof(one));
}

void TcpStoreServer::post(const std::string& topic, const std::vector<char>& value) {
  {
    const std::lock_guard lock(mutex_);
    values_.emplace(Key(0, topic), value);
  }
  wake();
}

std::optional<std::vector<char>> TcpStoreServer::read(int rank, const std::string& topic,
                                                      const Deadline& deadline) {
  const Key key(rank, topic);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at, [&] { return values_.contains(key); });
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::string TcpStoreServer::remark() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  if (starved_) {
    all.push_back("rank 0 could not accept connections: " + describe_errno(EMFILE));
  }
  if (!remarks_.empty()) all.push_back(fmt::format("rejected: {}", fmt::join(remarks_, "; ")));
  return fmt::format("{}", fmt::join(all, "; "));
}

void TcpStoreServer::finish(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at, [&] {
    return std::ranges::none_of(clients_,
                                [](const Client& one) { return one.rank >= 0 || one.leaving; });
  });
}

void TcpStoreServer::serve() {
  std::vector<pollfd> polled;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    for (Client& client : clients_) answer(client);
    polled.clear();
    polled.push_back({wake_.fd(), POLLIN, 0});
    const bool accepts = Clock::now() >= accept_at_;
    polled.push_back({accepts ? listener_.fd() : -1, POLLIN, 0});
    for (const Client& client : clients_) {
      // No request is read from a client that does not read its reply, or still waits for it: this
      // bounds the memory per client.
      const short events = !client.out.empty() ? POLLOUT : client.waiting ? POLLRDHUP : POLLIN;
      polled.push_back({client.socket.fd(), events, 0});
    }
    const int wait = milliseconds_to_wait();
    lock.unlock();
    const int count = ::poll(polled.data(), polled.size(), wait);
    lock.lock();
    if (count < 0 && errno != EINTR) return;
    std::uint64_t woken = 0;
    if (::read(wake_.fd(), &woken, sizeof(woken)) < 0 && errno != EAGAIN) return;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      serve_client(clients_[i], polled[i + 2].revents);
    }
    std::erase_if(clients_, [](const Client& client) { return !client.socket; });
    if (polled[1].revents & POLLIN) {
      for (int i = 0; i < kAcceptsAtOnce && accept_one(); ++i) continue;
    }
    changed_.notify_all();
  }
}

int TcpStoreServer::milliseconds_to_wait() const {
  const auto now = Clock::now();
  // At least once per second, to disconnect silent clients.
  auto until = now + std::chrono::seconds(1);
  if (accept_at_ > now) until = std::min(until, accept_at_);
  for (const Client& client : clients_) {
    if (client.waiting) until = std::min(until, client.waiting->until);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

void TcpStoreServer::serve_client(Client& client, short events) {
  bool stays = true;
  if (events & POLLOUT) stays = write_to(client);
  if (stays && (events & POLLIN)) stays = read_from(client);
  if (events & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP) && !(events & POLLIN)) stays = false;
  if (client.rank < 0 && Clock::now() - client.since > kHelloPatience) stays = false;
  if (!stays || (client.leaving && client.out.empty())) client.socket = Socket();
}

bool TcpStoreServer::accept_one() {
  SocketAddress from;
  from.length = sizeof(from.storage);
  Socket socket(::accept4(listener_.fd(), from.get(), &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    // The connection stays in the listener's queue. Without a pause, this thread would spin.
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return false;
    if (out_of_descriptors(errno)) starved_ = true;
    accept_at_ = Clock::now() + kStarvedPause;
    return false;
  }
  if (clients_.size() >= static_cast<std::size_t>(world_) + kSpareClients) {
    // Ranks send their hello at once, so the oldest silent client is the least likely rank.
    const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                     [](const Client& client) { return client.rank < 0; });
    if (oldest == clients_.end()) return true;
    clients_.erase(oldest);
  }
  Client client;
  client.socket = std::move(socket);
  client.name = from.to_string();
  client.since = Clock::now();
  clients_.push_back(std::move(client));
  return true;
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
  while (client.out.empty() && !client.waiting && !client.leaving) {
    std::vector<char>& in = client.in;
    if (client.rank < 0) {
      if (!take_hello(client)) return false;
      if (client.out.empty()) return true;
      continue;
    }
    if (in.size() < kRequestBytes) return true;
    const auto kind = load<std::uint8_t>(in.data());
    const std::size_t topic_length = load<std::uint16_t>(in.data() + 1);
    const std::size_t value_length = load<std::uint32_t>(in.data() + 3);
    if (kind != kPost && kind != kRead) return false;
    if (topic_length == 0 || topic_length > kMaxTopic || value_length > kMaxValue) return false;
    if (kind == kRead && value_length != kReadBytes) return false;
    const std::size_t length = kRequestBytes + topic_length + value_length;
    if (in.size() < length) return true;
    const char* const topic_at = in.data() + kRequestBytes;
    std::string topic(topic_at, topic_length);
    std::vector<char> value(topic_at + topic_length, topic_at + topic_length + value_length);
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(length));
    if (!take_request(client, kind, std::move(topic), std::move(value))) return false;
  }
  return true;
}

bool TcpStoreServer::take_hello(Client& client) {
  if (client.challenge) {
    take_proof(client);
    return true;
  }
  std::vector<char>& in = client.in;
  const auto starts_with = [&](const char* magic) {
    return std::memcmp(in.data(), magic, std::min(in.size(), kMagicBytes)) == 0;
  };
  const bool plain = starts_with(kMagic);
  if (!plain && !starts_with(kSecretMagic)) return false;
  const std::size_t length = plain ? kHelloBytes : kHelloBytes + kNonceBytes;
  if (in.size() < length) return true;
  const auto rank = load<std::uint32_t>(in.data() + kMagicBytes);
  const auto world = load<std::uint32_t>(in.data() + kMagicBytes + 4);
  std::string nonce(in.data() + kHelloBytes, length - kHelloBytes);
  in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(length));
  if (plain == static_cast<bool>(secret_)) {
    reject(client,
           fmt::format("rank {} at {} has {} secret, and rank 0 has {}; {}, or none of them", rank,
                       client.name, plain ? "no" : "a", plain ? "one" : "none", kSameSecret));
  } else if (plain) {
    greet(client, rank, world);
  } else {
    client.challenge = {rank, world, std::move(nonce), new_nonce()};
    reply(client.out, kDone,
          client.challenge->server_nonce + client.challenge->proof(secret_, Challenge::kServer));
  }
  return true;
}

void TcpStoreServer::take_proof(Client& client) {
  if (client.in.size() < kProofBytes) return;
  const Challenge challenge = *std::exchange(client.challenge, std::nullopt);
  const std::string_view proof(client.in.data(), kProofBytes);
  if (same_proof(proof, challenge.proof(secret_, Challenge::kClient))) {
    greet(client, challenge.rank, challenge.world);
  } else {
    reject(client, fmt::format("a client that says it is rank {}, at {}, has another secret than "
                               "rank 0; {}",
                               challenge.rank, client.name, kSameSecret));
  }
  client.in.erase(client.in.begin(), client.in.begin() + kProofBytes);
}

void TcpStoreServer::greet(Client& client, std::uint32_t rank, std::uint32_t world) {
  const auto size = static_cast<std::uint32_t>(world_);
  if (world != size) {
    reject(client, fmt::format("rank {} at {} has world size {}, rank 0 has {}", rank, client.name,
                               world, size));
  } else if (rank >= size) {
    reject(client, fmt::format("rank {} at {} is not in a world of {}", rank, client.name, size));
  } else if (rank == 0) {
    reject(client, fmt::format("a second rank 0 connected from {}; is RANK 0 set on two machines?",
                               client.name));
  } else if (!taken_[rank].empty()) {
    reject(client, fmt::format("rank {} at {} has already joined from {}", rank, client.name,
                               taken_[rank]));
  } else {
    taken_[rank] = client.name;
    client.rank = static_cast<int>(rank);
    reply(client.out, kDone, std::string());
  }
}

void TcpStoreServer::reject(Client& client, std::string reason) {
  reply(client.out, store_protocol::kRejected, reason);
  client.leaving = true;
  if (remarks_.size() < kMaxRemarks) remarks_.push_back(std::move(reason));
}

bool TcpStoreServer::take_request(Client& client, std::uint8_t kind, std::string topic,
                                  std::vector<char> value) {
  if (kind == kRead) {
    const auto rank = load<std::uint32_t>(value.data());
    const std::chrono::milliseconds patience(load<std::uint32_t>(value.data() + 4));
    if (rank >= static_cast<std::uint32_t>(world_)) return false;
    client.waiting = {{static_cast<int>(rank), std::move(topic)}, Clock::now() + patience};
    answer(client);
    return true;
  }
  Key key(client.rank, std::move(topic));
  const auto posted = std::distance(values_.lower_bound({client.rank, ""}),
                                    values_.lower_bound({client.rank + 1, ""}));
  if (static_cast<std::size_t>(posted) >= kMaxTopicsPerRank) return false;
  if (values_.contains(key)) {
    reject(client, fmt::format("rank {} at {} has already posted \"{}\"", client.rank, client.name,
                               key.second));
    return true;
  }
  values_.emplace(std::move(key), std::move(value));
  reply(client.out, kDone, std::string());
  return true;
}

void TcpStoreServer::answer(Client& client) {
  if (!client.waiting) return;
  if (const auto found = values_.find(client.waiting->key); found != values_.end()) {
    reply(client.out, kDone, found->second);
  } else if (Clock::now() >= client.waiting->until) {
    reply(client.out, kAbsent, std::string());
  } else {
    return;
  }
  client.waiting.reset();
}

}  // namespace thinreduce

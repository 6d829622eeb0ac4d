#include "thinreduce/transport/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <system_error>

#include "thinreduce/error.h"

namespace thinreduce {

std::string SocketAddress::host() const {
  std::array<char, NI_MAXHOST> name{};
  const int failed =
      ::getnameinfo(get(), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  return failed != 0 ? "unknown" : std::string(name.data());
}

std::uint16_t SocketAddress::port() const {
  // sin_port and sin6_port are at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::string SocketAddress::to_string() const {
  return host_and_port(host(), port());
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

SocketAddress own_address(const Socket& socket) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  ::getsockname(socket.fd(), address.get(), &address.length);
  return address;
}

Socket listen_at(const SocketAddress& address, int& error) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  if (socket) {
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // The address of all IPv6 interfaces stands for those of IPv4, too.
    if (address.family() == AF_INET6) {
      ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if (::bind(socket.fd(), address.get(), address.length) == 0 &&
        ::listen(socket.fd(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  error = errno;
  return {};
}

SocketAddress any_address(int family) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    why = ::gai_strerror(failed);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    addresses.push_back(address);
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& one) { return one.family() == AF_INET; });
  return addresses;
}

std::string host_and_port(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

bool out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE;
}

std::string describe_errno(int error) {
  const std::string text = std::generic_category().message(error);
  rlimit limit{};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return text;
  return fmt::format(
      "{}: this process has used up its {} file descriptors; raise the limit "
      "(ulimit -n)",
      text, limit.rlim_cur);
}

namespace {

// Returns the port, or one of the system's choice for 0, if nothing uses it; otherwise 0.
std::uint16_t try_port(std::uint16_t port) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.fd(), generic, length) != 0 ||
      ::getsockname(socket.fd(), generic, &length) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

// Returns the first of the ports that the system gives to connections.
int first_port_of_system() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0;
  return file >> first ? first : 32768;  // Linux's default
}

}  // namespace

std::uint16_t free_port() {
  // Until a rank binds the port that it was told, any connection of the machine may take one of the
  // system's, so others come first.
  std::random_device random;
  std::uniform_int_distribution<int> any_port(10000, std::max(first_port_of_system(), 20000) - 1);
  for (int tries = 0; tries < 100; ++tries) {
    const auto port = static_cast<std::uint16_t>(any_port(random));
    if (try_port(port) != 0) return port;
  }
  const std::uint16_t port = try_port(0);
  if (port == 0) {
    throw Error(ErrorCode::unavailable, "no free TCP port: " + describe_errno(errno));
  }
  return port;
}

}  // namespace thinreduce

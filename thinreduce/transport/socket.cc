#include "thinreduce/transport/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
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
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
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

std::string describe_errno(int error) {
  return std::generic_category().message(error);
}

std::uint16_t free_port() {
  const Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.fd(), generic, length) != 0 ||
      ::getsockname(socket.fd(), generic, &length) != 0) {
    throw Error(ErrorCode::unavailable, "no free TCP port: " + describe_errno(errno));
  }
  return ntohs(address.sin_port);
}

}  // namespace thinreduce

// A port that nobody listens on, for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>

#include "thinreduce/transport/socket.h"

namespace thinreduce {

inline std::uint16_t free_port() {
  const Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return 0;
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace thinreduce

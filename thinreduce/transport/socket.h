// A file descriptor that closes itself, and helpers for sockets.
#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace thinreduce {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }
  // Gives the descriptor away.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::uint16_t port() const;
  // Returns the address without the port, as in "10.1.2.3".
  [[nodiscard]] std::string host() const;
};

// Returns the addresses of a host, IPv4 first, so that ranks that resolve a name differently do not
// end up in two address families. Returns none, with the reason in `why`, if the name cannot be
// resolved.
[[nodiscard]] std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                                 std::string& why);

// Returns "10.1.2.3:29500" or "[fe80::1]:29500".
[[nodiscard]] std::string host_and_port(const std::string& host, std::uint16_t port);

// Returns a TCP port that is free at the moment. Throws Error{unavailable} if there is none.
[[nodiscard]] std::uint16_t free_port();

// Returns the text of an errno.
[[nodiscard]] std::string describe_errno(int error);

}  // namespace thinreduce

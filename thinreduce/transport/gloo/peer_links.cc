#include "thinreduce/transport/gloo/peer_links.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/link_maker.h"

namespace thinreduce {
namespace {

// Added to the family of an address whose rank has a secret.
constexpr char kHasSecret = 16;

Token random_token() {
  Token token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    throw Error(ErrorCode::unavailable, "no random bytes: " + describe_errno(errno));
  }
  return token;
}

}  // namespace

std::array<char, PeerAddress::kBytes> PeerAddress::to_bytes() const {
  std::array<char, kBytes> bytes{};
  if (address.family() == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    bytes[0] = 4;
    std::memcpy(&bytes[1], &v4->sin_addr, sizeof(v4->sin_addr));
    std::memcpy(&bytes[17], &v4->sin_port, sizeof(v4->sin_port));
  } else {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    bytes[0] = 6;
    std::memcpy(&bytes[1], &v6->sin6_addr, sizeof(v6->sin6_addr));
    std::memcpy(&bytes[17], &v6->sin6_port, sizeof(v6->sin6_port));
  }
  if (secret) bytes[0] = static_cast<char>(bytes[0] + kHasSecret);
  std::copy(token.begin(), token.end(), bytes.begin() + 19);
  return bytes;
}

PeerAddress PeerAddress::parse(std::span<const char> bytes, const SocketAddress& own) {
  const char family = bytes.empty() ? '\0' : static_cast<char>(bytes[0] & ~kHasSecret);
  if (bytes.size() != kBytes || (family != 4 && family != 6)) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{} bytes are not the address of a rank, which has {}; run the same "
                            "version on all ranks",
                            bytes.size(), kBytes));
  }
  PeerAddress peer;
  peer.secret = bytes[0] != family;
  peer.address = any_address(family == 4 ? AF_INET : AF_INET6);
  if (family == 4) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&peer.address.storage);
    std::memcpy(&v4->sin_addr, &bytes[1], sizeof(v4->sin_addr));
    std::memcpy(&v4->sin_port, &bytes[17], sizeof(v4->sin_port));
  } else {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&peer.address.storage);
    std::memcpy(&v6->sin6_addr, &bytes[1], sizeof(v6->sin6_addr));
    std::memcpy(&v6->sin6_port, &bytes[17], sizeof(v6->sin6_port));
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) && own.family() == AF_INET6) {
      v6->sin6_scope_id = reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_scope_id;
    }
  }
  std::copy_n(bytes.begin() + 19, peer.token.size(), peer.token.begin());
  return peer;
}

PeerListener::PeerListener(int rank, SocketAddress address, const Secret& secret)
    : rank_(rank), secret_(secret), own_{address, random_token(), static_cast<bool>(secret)} {
  int error = 0;
  own_.address.set_port(0);
  listener_ = listen_at(own_.address, error);
  if (!listener_) {
    throw Error(ErrorCode::unavailable, fmt::format("rank {}: can't listen at {}: {}", rank_,
                                                    address.host(), describe_errno(error)));
  }
  own_.address = own_address(listener_);
}

PeerLinks PeerListener::connect(const std::vector<PeerAddress>& ranks, const Deadline& deadline,
                                const Hearing& hear) {
  const Socket listener = std::move(listener_);
  return LinkMaker(rank_, secret_, listener, own_, ranks, deadline, hear).run();
}

}  // namespace thinreduce

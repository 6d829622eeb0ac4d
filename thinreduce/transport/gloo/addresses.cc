#include "thinreduce/transport/gloo/addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

bool is_number(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1 || host.find('%') != std::string::npos;
}

// Names that mean this machine on every machine.
bool is_localhost(const std::string& host) {
  return host == "localhost" || host.ends_with(".localhost") || host == "localhost.localdomain" ||
         host == "ip6-localhost" || host == "ip6-loopback";
}

bool is_of_this_machine(const SocketAddress& address) {
  const Socket socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.fd(), address.get(), address.length) == 0;
}

// Returns the address from which this machine sends to `there`. Connecting a UDP socket sends
// nothing.
std::optional<SocketAddress> source_towards(const SocketAddress& there) {
  const Socket socket(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.fd(), there.get(), there.length) != 0) return std::nullopt;
  SocketAddress here = own_address(socket);
  here.set_port(0);
  return here;
}

struct Interface {
  std::string name;
  SocketAddress address;
};

// Returns the addresses of the interfaces that are up, IPv4 first.
std::vector<Interface> interfaces(const std::string& who) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: can't list network interfaces: {}", who, describe_errno(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(found, &::freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address = any_address(family);
    std::memcpy(&address.storage, one->ifa_addr, address.length);
    all.push_back({one->ifa_name, address});
  }
  std::ranges::stable_partition(
      all, [](const Interface& one) { return one.address.family() == AF_INET; });
  return all;
}

SocketAddress address_of_interface(const std::string& who, const std::string& name) {
  std::set<std::string> names;
  for (const Interface& one : interfaces(who)) {
    if (one.name == name) return one.address;
    names.insert(one.name);
  }
  throw Error(
      ErrorCode::unavailable,
      fmt::format("{}: network interface \"{}\" does not exist or has no address; use one of: {}",
                  who, name, fmt::join(names, ", ")));
}

// Returns the address of the default route, or else of any interface but the loopback one.
std::optional<SocketAddress> address_of_default_route(const std::string& who) {
  // Addresses for documentation, which no machine has.
  for (const char* far : {"192.0.2.1", "2001:db8::1"}) {
    std::string why;
    for (const SocketAddress& address : resolve(far, 9, why)) {
      const auto here = source_towards(address);
      if (here && !here->is_loopback()) return here;
    }
  }
  for (const Interface& one : interfaces(who)) {
    if (!one.address.is_loopback()) return one.address;
  }
  return std::nullopt;
}

}  // namespace

std::vector<SocketAddress> listening_addresses(const std::string& host) {
  std::vector<SocketAddress> own;
  std::string why;
  for (SocketAddress& address : resolve(host, 0, why)) {
    if (is_of_this_machine(address)) own.push_back(address);
  }
  const bool one_place =
      is_number(host) || is_localhost(host) || (own.size() == 1 && !own.front().is_loopback());
  if (!own.empty() && one_place) return {own.front()};
  return {any_address(AF_INET6), any_address(AF_INET)};
}

SocketAddress address_for_peers(const std::string& who, const std::string& interface,
                                const std::string& master) {
  if (!interface.empty()) return address_of_interface(who, interface);
  std::optional<SocketAddress> here;
  std::string why = "no route";
  if (!master.empty()) {
    for (const SocketAddress& there : resolve(master, 9, why)) {
      here = source_towards(there);
      if (here && (!here->is_loopback() || (there.is_loopback() && is_number(master)) ||
                   is_localhost(master))) {
        return *here;
      }
      if (!here) why = describe_errno(errno);
    }
    if (!here) {
      throw Error(
          ErrorCode::unavailable,
          fmt::format("{}: can't reach rank 0's host '{}': {}; MASTER_ADDR, or the master "
                      "that connect() was given, must be the name or address of rank 0's machine",
                      who, master, why));
    }
  }
  // The master's own name often stands for a loopback address on its own machine.
  if (const auto route = address_of_default_route(who)) return *route;
  if (here) return *here;
  std::string unused;
  return resolve("127.0.0.1", 0, unused).at(0);
}

}  // namespace thinreduce

#include "thinreduce/transport/gloo/gloo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/connect_lifelines.h"
#include "thinreduce/transport/gloo/gloo_transport.h"
#include "thinreduce/transport/gloo/tcp_store.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

using std::chrono::milliseconds;

milliseconds time_left(const Deadline& deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline.at - Clock::now()), milliseconds(1));
}

void check(const GlooOptions& options) {
  if (options.world < 1) {
    throw Error(ErrorCode::bad_input,
                fmt::format("a world must have at least 1 rank, not {}", options.world));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("rank {} must be 0 to {}: the world has {} ranks; check RANK and WORLD_SIZE",
                    options.rank, options.world - 1, options.world));
  }
}

// Returns the address of an interface, IPv4 if it has one.
std::string address_of_interface(const GlooOptions& options) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) {
    throw Error(ErrorCode::unavailable, fmt::format("rank {}: can't list network interfaces: {}",
                                                    options.rank, describe_errno(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(found, &::freeifaddrs);
  std::set<std::string> names;
  std::string best;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(one->ifa_name);
    if (options.interface != one->ifa_name || (family == AF_INET6 && !best.empty())) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, one->ifa_addr, address.length);
    if (best.empty() || family == AF_INET) best = address.host();
  }
  if (!best.empty()) return best;
  throw Error(
      ErrorCode::unavailable,
      fmt::format(
          "rank {}: network interface \"{}\" does not exist or has no address; use one of: {}",
          options.rank, options.interface, fmt::join(names, ", ")));
}

// Returns the address that this machine uses to reach the master. Connecting a UDP socket sends
// nothing.
std::string address_towards_master(const GlooOptions& options) {
  std::string why = "no route";
  for (const SocketAddress& master : resolve(options.master_addr, options.master_port, why)) {
    const Socket socket(::socket(master.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SocketAddress local;
    local.length = sizeof(local.storage);
    if (socket && ::connect(socket.fd(), master.get(), master.length) == 0 &&
        ::getsockname(socket.fd(), local.get(), &local.length) == 0) {
      return local.host();
    }
    why = describe_errno(errno);
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("rank {}: can't reach {}: {}", options.rank, options.master_addr, why));
}

// Gloo writes to sockets that the peer may have closed, and a lost peer must not end this process.
void survive_broken_pipes() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, nullptr);
  }
}

struct Meeting {
  const GlooOptions& options;
  gloo::rendezvous::Store& store;
  Deadline deadline;
  // Returns a remark for the error when a rank is missing.
  std::function<std::string()> remark;

  // Waits until every rank has announced `what`; throws Error{timeout} naming those that have not.
  void wait_for_all(std::string_view what, std::string_view failing) {
    store.set(fmt::format("{}/{}", what, options.rank), {'1'});
    std::vector<int> missing;
    for (int rank = 0; rank < options.world; ++rank) {
      try {
        store.wait({fmt::format("{}/{}", what, rank)}, time_left(deadline));
      } catch (const Error& e) {
        if (e.code() != ErrorCode::timeout) throw;
        missing.push_back(rank);
      } catch (const std::exception&) {
        missing.push_back(rank);
      }
    }
    if (missing.empty()) return;
    const std::string more = remark();
    throw Error(ErrorCode::timeout,
                fmt::format("rank {}: {} {} {} within {:g} s{}", options.rank,
                            missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                            failing, deadline.allowed.count(),
                            more.empty() ? "" : fmt::format(" (rejected: {})", more)));
  }

  std::shared_ptr<gloo::rendezvous::Context> mesh(
      const std::string& name, std::shared_ptr<gloo::transport::Device>& device) {
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.world);
    // Gloo waits for a connection five times as long as this.
    context->setTimeout(std::max(time_left(deadline) / 5, milliseconds(1)));
    gloo::rendezvous::PrefixStore named(name, store);
    context->connectFullMesh(named, device);
    return context;
  }
};

// Gloo's thread reads from the sockets. While another thread sends on a connection, it spins on
// that connection's lock. Linux tends to run it at the moment when another process has written to
// the socket, in place of the sender that holds the lock, and then it spins for a whole time slice.
// A thread of the batch class does not preempt others, which makes small reduces with more ranks
// than cores several times faster. A thread inherits the class from its creator.
std::shared_ptr<gloo::transport::Device> make_device(const gloo::transport::tcp::attr& attributes) {
  std::shared_ptr<gloo::transport::Device> device;
  std::exception_ptr failure;
  std::thread([&] {
    const sched_param plain{};
    // If the system refuses, reduces are only slower.
    static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_BATCH, &plain));
    try {
      device = gloo::transport::tcp::CreateDevice(attributes);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return device;
}

std::unique_ptr<Transport> meet(Meeting meeting) {
  const GlooOptions& options = meeting.options;
  survive_broken_pipes();
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname =
        options.interface.empty() ? address_towards_master(options) : address_of_interface(options);
    auto device = make_device(attributes);
    meeting.wait_for_all("joined", "never arrived");
    auto data = meeting.mesh("data", device);
    auto lifelines = connect_lifelines(
        {options.rank, options.world, attributes.hostname, meeting.deadline}, meeting.store);
    auto transport = std::make_unique<GlooTransport>(
        GlooTransport::Connections{std::move(data), std::move(lifelines)});
    // The owner of the store may close it after this.
    meeting.wait_for_all("connected", "did not connect to all others");
    return transport;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::timeout, fmt::format("rank {}: could not connect to the other ranks: {}",
                                                options.rank, e.what()));
  }
}

std::unique_ptr<Transport> alone() {
  auto context = std::make_shared<gloo::rendezvous::Context>(0, 1);
  return std::make_unique<GlooTransport>(GlooTransport::Connections{context, {}});
}

std::string from_environment(const char* name, std::string_view expected) {
  const char* const value = std::getenv(name);
  if (value != nullptr && *value != '\0') return value;
  throw Error(ErrorCode::bad_input,
              fmt::format("environment variable {} is not set; expected {}, as torchrun sets it",
                          name, expected));
}

int number_from_environment(const char* name, int least, int most, std::string_view expected) {
  const std::string text = from_environment(name, expected);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  throw Error(ErrorCode::bad_input,
              fmt::format("environment variable {} is \"{}\"; expected {}", name, text, expected));
}

}  // namespace

std::unique_ptr<Transport> connect_gloo(const GlooOptions& options) {
  check(options);
  if (options.world == 1) return alone();
  const Deadline deadline = Deadline::after(options.connect_timeout);
  TcpStore store({options.rank, options.world, options.master_addr, options.master_port,
                  options.connect_timeout});
  std::unique_ptr<Transport> transport;
  try {
    transport = meet({options, store, deadline, [&] { return store.rejected(); }});
  } catch (const Error& e) {
    store.give_up(e.what());
    throw;
  }
  // The server must outlive the last request. All ranks are connected by now, so the loss of a rank
  // is noticed through its connections.
  try {
    if (options.rank != 0) {
      store.set(fmt::format("done/{}", options.rank), {});
    } else {
      for (int rank = 1; rank < options.world; ++rank) {
        store.wait({fmt::format("done/{}", rank)}, time_left(deadline));
      }
    }
  } catch (const Error&) {
  }
  return transport;
}

std::unique_ptr<Transport> connect_gloo(const GlooOptions& options,
                                        gloo::rendezvous::Store& store) {
  check(options);
  if (options.world == 1) return alone();
  return meet({options, store, Deadline::after(options.connect_timeout), [] { return ""; }});
}

GlooOptions gloo_options_from_environment() {
  GlooOptions options;
  constexpr int kMost = 1'000'000;
  options.world = number_from_environment("WORLD_SIZE", 1, kMost, "the number of ranks, 1 or more");
  options.rank = number_from_environment(
      "RANK", 0, options.world - 1,
      fmt::format("this rank, 0 to {} (WORLD_SIZE is {})", options.world - 1, options.world));
  options.master_addr = from_environment("MASTER_ADDR", "the address of rank 0");
  options.master_port = static_cast<std::uint16_t>(number_from_environment(
      "MASTER_PORT", 1, 65535, "a port of rank 0 that is free, 1 to 65535"));
  if (const char* interface = std::getenv("THINREDUCE_INTERFACE")) options.interface = interface;
  return options;
}

bool have_gloo() {
  return true;
}

}  // namespace thinreduce

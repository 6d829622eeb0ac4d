#include "thinreduce/transport/gloo/gloo.h"

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/adopted_mesh.h"
#include "thinreduce/transport/gloo/descriptors.h"
#include "thinreduce/transport/gloo/gloo_transport.h"
#include "thinreduce/transport/gloo/meeting.h"
#include "thinreduce/transport/gloo/tcp_store.h"

namespace thinreduce {
namespace {

// How long a rank 0 that fails waits for the others to read the reason.
constexpr Seconds kFarewell{2};

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
  // PyTorch and Gloo read this variable.
  const char* const device = std::getenv("GLOO_DEVICE_TRANSPORT");
  if (device != nullptr && std::string_view(device).find("TLS") != std::string_view::npos) {
    throw Error(ErrorCode::unavailable,
                fmt::format("GLOO_DEVICE_TRANSPORT={} asks for encryption, but thinreduce's own "
                            "connections over gloo are not encrypted; connect the machines by an "
                            "encrypted network (WireGuard, IPsec) and unset the variable",
                            device));
  }
}

// Gloo writes to sockets that the peer may have closed, and a lost peer must not end this process.
void survive_broken_pipes() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, nullptr);
  }
}

// Gloo's thread reads from the sockets. While another thread sends on a connection, it spins on
// that connection's lock. Linux tends to run it at the moment when another process has written to
// the socket, in place of the sender that holds the lock, and then it spins for a whole time slice.
// A thread of the batch class does not preempt others, which makes small reduces with more ranks
// than cores several times faster. A thread inherits the class from its creator.
std::shared_ptr<gloo::transport::Device> make_device(const SocketAddress& address) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address.host();
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

std::unique_ptr<Transport> meet(const GlooOptions& options, Board& board,
                                const Deadline& deadline) {
  survive_broken_pipes();
  Meeting meeting(options, board, deadline);
  try {
    PeerLinks links = meeting.connect();
    const int peer = options.rank == 0 ? 1 : 0;
    const auto own = own_address(links[static_cast<std::size_t>(peer)][kData].socket);
    auto data = adopt(options.rank, links, make_device(own));
    std::vector<Socket> lifelines;
    for (auto& link : links) lifelines.push_back(std::move(link[kLifeline].socket));
    auto transport = std::make_unique<GlooTransport>(
        GlooTransport::Connections{std::move(data), std::move(lifelines)});
    meeting.confirm();
    return transport;
  } catch (const Error& e) {
    meeting.give_up(e);
    throw;
  } catch (const std::exception& e) {
    const Error error(
        ErrorCode::unavailable,
        fmt::format("rank {}: could not connect to the other ranks: {}", options.rank, e.what()));
    meeting.give_up(error);
    throw error;
  }
}

// Returns the number of file descriptors that this rank opens: one per connection, at rank 0 also
// one per client of the store, and some for listeners, Gloo and strangers.
unsigned long descriptors_for(const GlooOptions& options, bool serves) {
  constexpr unsigned long kOthers = 16;
  const auto peers = static_cast<unsigned long>(options.world - 1);
  return (kUses + (serves ? 1 : 0)) * peers + kOthers;
}

std::unique_ptr<Transport> alone() {
  auto context = std::make_shared<gloo::rendezvous::Context>(0, 1);
  return std::make_unique<GlooTransport>(GlooTransport::Connections{context, {}});
}

// Meets the others at rank 0. The store has ended when it returns, which rank 0 waits for.
std::unique_ptr<Transport> meet_at_master(const GlooOptions& options) {
  const Deadline deadline = Deadline::after(options.connect_timeout);
  TcpStore store(
      {options.rank, options.world, options.master_addr, options.master_port, options.secret},
      deadline);
  std::unique_ptr<Transport> transport;
  try {
    transport = meet(options, store, deadline);
  } catch (const Error&) {
    // The others must have the time to read why.
    store.finish(Deadline::after(kFarewell));
    throw;
  }
  // All ranks are connected by now, so the loss of a rank is noticed through its connections.
  store.finish(deadline);
  return transport;
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

Seconds time_until(const Deadline& deadline) {
  return std::max(Seconds(0), Seconds(deadline.at - Clock::now()));
}

}  // namespace

std::unique_ptr<Transport> connect_gloo(const GlooOptions& options) {
  check(options);
  if (options.world == 1) return alone();
  require_descriptors(options.rank, options.world, descriptors_for(options, options.rank == 0));
  const Deadline deadline = Deadline::after(options.connect_timeout);
  auto transport = meet_at_master(options);
  return authenticate(std::move(transport), options.secret, time_until(deadline));
}

std::unique_ptr<Transport> connect_gloo(const GlooOptions& options,
                                        gloo::rendezvous::Store& store) {
  check(options);
  if (options.world == 1) return alone();
  require_descriptors(options.rank, options.world, descriptors_for(options, false));
  StoreBoard board(options.rank, store);
  const Deadline deadline = Deadline::after(options.connect_timeout);
  auto transport = meet(options, board, deadline);
  return authenticate(std::move(transport), options.secret, time_until(deadline));
}

GlooOptions gloo_options_from_environment() {
  GlooOptions options;
  constexpr int kMax = 1'000'000;
  options.world = number_from_environment("WORLD_SIZE", 1, kMax, "the number of ranks, 1 or more");
  options.rank = number_from_environment(
      "RANK", 0, options.world - 1,
      fmt::format("the number of this rank, 0 to {}, because WORLD_SIZE is {}", options.world - 1,
                  options.world));
  options.master_addr = from_environment("MASTER_ADDR", "the address of rank 0");
  options.master_port = static_cast<std::uint16_t>(number_from_environment(
      "MASTER_PORT", 1, 65535, "a port of rank 0 that is free, 1 to 65535"));
  if (const char* interface = std::getenv("THINREDUCE_INTERFACE")) options.interface = interface;
  options.secret = Secret::from_environment();
  return options;
}

bool have_gloo() {
  return true;
}

}  // namespace thinreduce

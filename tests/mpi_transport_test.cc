// The mpi transport, as mpirun starts it: every rank runs all checks of one case.
//
//   mpirun -n 3 mpi_transport_test exchange|mismatch|abandon|deadline|leave|cancel|tracks
//
// A case apart for each way to end, because MPI can't be started twice in a process.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tracks.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/mpi/mpi.h"

namespace thinreduce::mpi_transport_test {
namespace {

int failed_checks = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failed_checks;
  fmt::print(stderr, "FAILED: {}\n", what);
}

void check_error(const std::function<void()>& action, ErrorCode code, const std::string& text) {
  try {
    action();
    check(false, fmt::format("nothing thrown, expected \"{}\"", text));
  } catch (const Error& e) {
    check(e.code() == code && std::string(e.what()).find(text) != std::string::npos,
          fmt::format("\"{}\" ({}), expected \"{}\"", e.what(), to_string(e.code()), text));
  }
}

Deadline soon() {
  return Deadline::after(Seconds(50));
}

std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 97) & 255);
  }
  return bytes;
}

void exchange(Transport& transport) {
  struct Message {
    std::vector<std::byte> out;
    std::vector<std::byte> in;
    std::vector<std::byte> expected;
  };
  std::vector<std::unique_ptr<Message>> messages;
  std::vector<Pending> pending;
  const int me = transport.rank();
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == me) continue;
    for (const Channel channel : {Channel::data, Channel::header, Channel::agreement}) {
      int number = 0;
      for (const std::size_t size : {0, 1, 4097, 0, 65537, 8 << 20}) {
        ++number;
        const auto seed = [&](int from, int to) {
          return from * 1000 + to * 100 + static_cast<int>(channel) * 10 + number;
        };
        messages.push_back(std::make_unique<Message>(Message{pattern(size, seed(me, peer)),
                                                             std::vector<std::byte>(size),
                                                             pattern(size, seed(peer, me))}));
        pending.push_back(transport.send(peer, channel, messages.back()->out));
        pending.push_back(transport.receive(peer, channel, messages.back()->in));
      }
    }
  }
  for (const Pending& one : pending) one->wait(soon());
  for (const auto& one : messages) {
    check(one->in == one->expected, fmt::format("a message of {} bytes arrives", one->in.size()));
  }

  std::vector<float> values(1001, static_cast<float>(me + 1));
  check(transport.native_sum(values), "MPI has a sum");
  const int world = transport.size();
  const int sum = world * (world + 1) / 2;
  check(values[0] == static_cast<float>(sum) && values[0] == values[1000], "MPI's sum adds up");
}

void mismatch(Transport& transport) {
  std::vector<std::byte> bytes(10);
  if (transport.rank() == 1) {
    transport.send(0, Channel::data, bytes)->wait(soon());
    transport.send(0, Channel::data, bytes)->wait(soon());
  }
  if (transport.rank() != 0) return;
  std::vector<std::byte> longer(12);
  check_error([&] { transport.receive(1, Channel::data, longer)->wait(soon()); },
              ErrorCode::mismatch, "rank 0: rank 1 sent 10 bytes where 12 were expected");
  std::vector<std::byte> shorter(4);
  check_error([&] { transport.receive(1, Channel::data, shorter)->wait(soon()); },
              ErrorCode::mismatch, "bytes where 4 were expected");
}

void abandon(Transport& transport) {
  std::vector<std::byte> bytes(1 << 20);
  if (transport.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    transport.abandon("tensor 7 is not finite");
    check_error([&] { (void)transport.send(0, Channel::data, bytes); }, ErrorCode::lost_peer,
                "rank 1 gave up: tensor 7 is not finite");
    return;
  }
  // The others wait for each other, not for rank 1.
  const Pending receive = transport.receive(2 - transport.rank(), Channel::data, bytes);
  check_error([&] { receive->wait(soon()); }, ErrorCode::lost_peer,
              "rank 1 gave up: tensor 7 is not finite");
}

void deadline(Transport& transport) {
  std::vector<std::byte> bytes(4096);
  if (transport.rank() == 0) {
    const Pending receive = transport.receive(2, Channel::data, bytes);
    check_error([&] { receive->wait(Deadline::after(Seconds(0.3))); }, ErrorCode::timeout,
                "rank 0: no answer from rank 2 within 0.3 s (receive of 4096 bytes); rank 2 "
                "is computing, stopped, unreachable, or itself waiting for such a rank; check it");
    return;
  }
  const Pending receive = transport.receive(3 - transport.rank(), Channel::data, bytes);
  check_error([&] { receive->wait(soon()); }, ErrorCode::lost_peer,
              "rank 0 gave up: no answer from rank 2 within 0.3 s");
}

void leave(Transport& transport) {
  auto bytes = pattern(1000, transport.rank());
  if (transport.rank() == 2) {
    transport.send(0, Channel::data, bytes)->wait(soon());
    return;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::vector<std::byte> got(1000);
  const int peer = 1 - transport.rank();
  for (int round = 0; round < 20; ++round) {
    const Pending send = transport.send(peer, Channel::header, bytes);
    transport.receive(peer, Channel::header, got)->wait(soon());
    send->wait(soon());
    check(got == pattern(1000, peer), "ranks 0 and 1 go on");
  }
  if (transport.rank() == 0) {
    transport.receive(2, Channel::data, got)->wait(soon());
    check(got == pattern(1000, 2), "the last message of rank 2 arrives");
  }
  check_error([&] { transport.receive(2, Channel::data, got)->wait(soon()); }, ErrorCode::lost_peer,
              "rank 2 has left (receive of 1000 bytes)");
}

// Memory of an operation that was destroyed is the caller's again: MPI neither reads nor writes it.
void cancel(Transport& transport) {
  constexpr std::size_t size = 8 << 20;  // MPI transfers it only when the receiver is there
  std::vector<std::byte> ready(1);
  auto bytes = pattern(size, 1);
  if (transport.rank() == 0) {
    { const Pending destroyed = transport.send(1, Channel::data, bytes); }
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    { const Pending destroyed = transport.receive(1, Channel::header, bytes); }
    transport.send(1, Channel::agreement, ready)->wait(soon());
    transport.receive(1, Channel::agreement, ready)->wait(soon());
    check(bytes == std::vector<std::byte>(size), "a destroyed receive writes nothing");
  }
  if (transport.rank() == 1) {
    transport.receive(0, Channel::agreement, ready)->wait(soon());
    std::vector<std::byte> got(size);
    transport.receive(0, Channel::data, got)->wait(soon());
    check(got == bytes, "a destroyed send had its message to itself");
    { const Pending unread = transport.send(0, Channel::header, bytes); }
    transport.send(0, Channel::agreement, ready)->wait(soon());
  }
}

int run(const std::string& name) {
  const std::map<std::string, std::function<void(Transport&)>> cases = {
      {"exchange", exchange}, {"mismatch", mismatch}, {"abandon", abandon},  {"deadline", deadline},
      {"leave", leave},       {"cancel", cancel},     {"tracks", use_tracks}};
  const auto found = cases.find(name);
  if (found == cases.end()) {
    fmt::print(stderr, "no case \"{}\"\n", name);
    return 2;
  }
  check(under_mpi(), "mpirun is noticed");
  try {
    const auto transport = connect_mpi();
    check(transport->size() == 3, "three ranks");
    found->second(*transport);
  } catch (const std::exception& e) {
    check(false, e.what());
  }
  return failed_checks == 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinreduce::mpi_transport_test

int main(int argc, char** argv) {
  return thinreduce::mpi_transport_test::run(argc > 1 ? argv[1] : "");
}

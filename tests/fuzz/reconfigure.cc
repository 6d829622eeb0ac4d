// A session that forms a new world with the input as its only peer: settings, ids, records of
// members, sizes of messages and states. The session joins the peer, or the peer joins it.
#include <memory>
#include <thread>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzzed_specs.h"
#include "tests/fuzz/scripted_transport.h"
#include "tests/links.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::fuzz {
namespace {

// States travel in pieces of 16 MiB, and a piece is allocated when it is announced.
constexpr std::size_t kMaxBytes = std::size_t{16} * 1024 * 1024;
constexpr std::size_t kElements = 601;

void reduce(Session& session, unsigned steps) {
  for (unsigned step = 0; step < steps; ++step) {
    auto values = gradient_of(kElements, step * 7 + static_cast<unsigned>(session.rank()));
    session.reduce(0, values);
  }
}

// Has a past if it does not join.
void reconfigure(const std::string& spec, bool joins, std::shared_ptr<Transport> transport) {
  Session session(std::move(connect_threads(1)[0]), {.spec = spec,
                                                     .timeout = Seconds(20),
                                                     .min_elements = 64,
                                                     .link = kOwnerLink,
                                                     .momentum_inside_ok = true});
  if (!joins) reduce(session, 3);
  static_cast<void>(session.reconfigure(std::move(transport)));
  reduce(session, 1);
}

Bytes record(const std::string& spec, bool joins) {
  auto transports = connect_threads(2);
  const auto recording = std::make_shared<RecordingTransport>(std::move(transports[0]));
  std::jthread peer([&] { reconfigure(spec, !joins, std::move(transports[1])); });
  reconfigure(spec, joins, recording);
  peer.join();
  Bytes seed;
  put(seed, key_of(spec));
  put(seed, static_cast<std::uint8_t>(joins ? 1 : 0));
  put_bytes(seed, recording->script());
  return seed;
}

}  // namespace

void run(Input input) {
  const std::string spec = spec_of(input.value<std::uint16_t>());
  const bool joins = (input.value<std::uint8_t>() & 1U) != 0;
  const auto transport = std::make_shared<ScriptedTransport>(0, 2, input, kMaxBytes);
  accepts([&] { reconfigure(spec, joins, transport); });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const std::string& spec : default_specs()) {
    all.push_back(record(spec, false));
    all.push_back(record(spec, true));
  }
  return all;
}

}  // namespace thinreduce::fuzz

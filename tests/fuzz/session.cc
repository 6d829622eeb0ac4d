// A session whose only peer is the input: settings, link, statements, raw tensors and payloads.
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

constexpr std::size_t kMaxBytes = std::size_t{128} * 1024;  // probes of the link have 64 KiB
constexpr unsigned kSteps = 3;

struct Case {
  std::string spec;
  bool measures = false;  // the link
  std::uint64_t warmup = 0;
  std::uint64_t check_every = 100;
};

Case read_case(Input& input) {
  const auto key = input.value<std::uint16_t>();
  const auto flags = input.value<std::uint8_t>();
  return {.spec = key == key_of("auto") ? "auto" : spec_of(key),
          .measures = (flags & 1U) != 0,
          .warmup = (flags & 2U) != 0 ? 1U : 0U,
          .check_every = (flags & 4U) != 0 ? 1U : 100U};
}

BucketLayout session_layout() {
  BucketLayout layout;
  layout.add("conv.weight", {8, 4, 3, 3});
  layout.add("conv.bias", {8});
  layout.add("fc.weight", {9, 31});
  return layout;
}

void reduce_some(const Case& of, std::shared_ptr<Transport> transport) {
  Session session(std::move(transport),
                  {.spec = of.spec,
                   .timeout = Seconds(20),
                   .min_elements = 64,
                   .warmup_steps = of.warmup,
                   .check_replicas_every = of.check_every,
                   .link = of.measures ? std::nullopt : std::optional<Link>(kOwnerLink),
                   .momentum_inside_ok = true});
  const auto bucket = session.add_bucket(session_layout());
  for (unsigned step = 0; step < kSteps; ++step) {
    auto values =
        gradient_of(session_layout().elements, step * 7 + static_cast<unsigned>(session.rank()));
    session.submit(bucket, values).get();
  }
}

Bytes record(const Case& of, std::uint8_t flags) {
  auto transports = connect_threads(2);
  const auto recording = std::make_shared<RecordingTransport>(std::move(transports[0]));
  std::jthread peer([&] { reduce_some(of, std::move(transports[1])); });
  reduce_some(of, recording);
  peer.join();
  Bytes seed;
  put(seed, key_of(of.spec));
  put(seed, flags);
  put_bytes(seed, recording->script());
  return seed;
}

}  // namespace

void run(Input input) {
  const Case of = read_case(input);
  const auto transport = std::make_shared<ScriptedTransport>(0, 2, input, kMaxBytes);
  accepts([&] { reduce_some(of, transport); });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  std::vector<std::string> specs = default_specs();
  specs.emplace_back("auto");
  std::uint8_t number = 0;
  for (const std::string& spec : specs) {
    // A probe of the link is long and says nothing about the method.
    const auto flags = static_cast<std::uint8_t>(number++ % 4 * 2);
    Bytes key;
    put(key, key_of(spec));
    put(key, flags);
    Input input(reinterpret_cast<const std::uint8_t*>(key.data()), key.size());
    all.push_back(record(read_case(input), flags));
  }
  return all;
}

}  // namespace thinreduce::fuzz

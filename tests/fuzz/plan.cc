// Messages of the peers while a session with the spec `auto` plans: payloads and figures of trials,
// figures of steps.
#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzzed_specs.h"
#include "tests/fuzz/scripted_transport.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/trials.h"
#include "thinreduce/methods/auto.h"
#include "thinreduce/plan/planner.h"

namespace thinreduce::fuzz {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} * 1024;
constexpr std::size_t kElements = 64;
// Its latency keeps trials to one run each.
constexpr Link kSlowLink{.bytes_per_second = 1e6, .latency = Seconds{0.02}};

const AutoOptions& options() {
  static const AutoOptions options = auto_options(Spec::parse("auto"));
  return options;
}

// Returns a figure that passed the checks of statements and trials.
double figure(Input& input) {
  const auto value = std::abs(static_cast<double>(input.value<float>()));
  return std::isfinite(value) ? value : 0;
}

void try_all(Input input) {
  ScriptedTransport transport(0, 2, input, kMaxBytes);
  static const RegisteredBucket bucket({.id = 3, .elements = kElements, .tensors = {}},
                                       Spec::parse("auto"), 16);
  static const Sample sample{.values = gradient_of(kElements, 1), .mean = {}};
  const auto make = [&](const FrameId& id) {
    transport.begin(id);
    Exchange exchange(transport, Seconds(20), id);
    exchange.link = kSlowLink;
    return exchange;
  };
  accepts([&] {
    const auto trials =
        try_candidates({.options = options(), .make_exchange = make}, bucket, sample);
    Planner planner(options(), 2);
    planner.note(3, kElements, {.seconds = 1e-3, .wait = 1e-4});
    for (const auto& [id, choice] : planner.decide({{3, trials}}, kSlowLink)) {
      expect(choice < options().candidates.size(), "a plan names a candidate");
    }
  });
}

void plan(Input input) {
  Planner planner(options(), 2);
  const std::size_t candidates = options().candidates.size();
  for (unsigned step = 0; step < 200 && input.left() > 0; ++step) {
    if (planner.open_step() == Planner::Task::try_candidates) {
      std::map<std::uint32_t, Planner::Trials> trials;
      for (std::uint32_t bucket = 0; bucket < 2; ++bucket) {
        Planner::Trials& one = trials[bucket];
        one.times = 1 + input.value<std::uint8_t>();
        one.tried.assign(candidates, true);
        for (std::size_t i = 0; i < candidates; ++i) {
          one.figures.push_back({.seconds = figure(input),
                                 .encode = figure(input),
                                 .decode = figure(input),
                                 .bytes = figure(input),
                                 .error = figure(input)});
        }
      }
      const Link link{.bytes_per_second = figure(input), .latency = Seconds(figure(input))};
      for (const auto& [id, choice] : planner.decide(trials, link)) {
        expect(choice < candidates, "a plan names a candidate");
      }
    }
    for (std::uint32_t bucket = 0; bucket < 2; ++bucket) {
      BucketTimes times;
      for (double* time :
           {&times.ready, &times.seconds, &times.busy, &times.wait, &times.latency}) {
        *time = figure(input);
      }
      planner.note(bucket, 1000 + bucket, times);
    }
    static_cast<void>(planner.plan());
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  Bytes steps{std::byte{1}};
  for (unsigned i = 0; i < 300; ++i) put(steps, 1e-3F * static_cast<float>(i % 13));
  return {Bytes(1), steps, Bytes(4000)};
}

void run(Input input) {
  if (input.value<std::uint8_t>() % 2 == 0) {
    try_all(input);
  } else {
    plan(input);
  }
}

}  // namespace thinreduce::fuzz

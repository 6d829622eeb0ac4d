// The cost of the tags of a secret: messages through memory, and reduces of a virtual cluster with
// and without tags.
//
// Two ranks are threads of this process; each needs a core. Both kinds of reduce run in turns, and
// a figure is the median of its rounds. The link is below the tags, so that it carries their bytes
// and does not hide their time. In real time the wake-ups of threads hide what small buckets cost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

constexpr int kRanks = 2;

double seconds_since(Clock::time_point start) {
  return Seconds(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const Secret& secret() {
  static const Secret one = Secret::from_text("a secret of a benchmark");
  return one;
}

// Seconds per message from one rank to another and back, through memory.
double message_seconds(std::size_t bytes, const Secret& given) {
  auto transports = connect_threads(kRanks);
  std::vector<double> seconds;
  std::vector<std::jthread> ranks;
  for (auto& transport : transports) {
    ranks.emplace_back([&] {
      const auto own = authenticate(std::move(transport), given);
      std::vector<std::byte> message(bytes, std::byte{7});
      const int peer = 1 - own->rank();
      for (int round = 0; round < 200; ++round) {
        const auto start = Clock::now();
        for (int turn = 0; turn < 2; ++turn) {
          const bool sends = turn == own->rank();
          const Pending one = sends ? own->send(peer, Channel::data, message)
                                    : own->receive(peer, Channel::data, message);
          one->wait(Deadline::after(Seconds(60)));
        }
        if (own->rank() == 0) seconds.push_back(seconds_since(start) / 2);
      }
    });
  }
  ranks.clear();
  return median(std::move(seconds));
}

// Returns the median seconds of a reduce without and with tags.
std::array<double, 2> reduce_seconds(const std::string& spec, std::size_t floats, int rounds,
                                     const std::string& link) {
  const ClusterOptions cluster{.links = ClusterLinks::parse(link), .cores = kRanks};
  std::array worlds{simulate(connect_threads(kRanks), cluster),
                    simulate(connect_threads(kRanks), cluster)};
  std::array<std::vector<double>, 2> seconds;
  std::barrier together(kRanks);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      std::array<std::unique_ptr<Session>, 2> sessions;
      std::array<SimulatedTransport*, 2> clocks{};
      for (std::size_t kind = 0; kind < 2; ++kind) {
        clocks[kind] = worlds[kind][rank].get();
        std::unique_ptr<Transport> transport = std::move(worlds[kind][rank]);
        if (kind == 1) transport = authenticate(std::move(transport), secret());
        sessions[kind] =
            std::make_unique<Session>(std::move(transport), SessionOptions{.spec = spec});
      }
      std::vector<float> gradient(floats);
      for (int round = 0; round < 2 * rounds; ++round) {
        for (std::size_t i = 0; i < floats; ++i) {
          gradient[i] = static_cast<float>((i * 7919 + rank) % 1000) / 1000.0F - 0.5F;
        }
        const auto kind = static_cast<std::size_t>(round % 2);
        together.arrive_and_wait();
        clocks[kind]->align();
        const auto start = clocks[kind]->now();
        (void)sessions[kind]->reduce(0, gradient);
        const Seconds took = clocks[kind]->now() - start;
        (void)clocks[kind]->hand_over();  // the other cluster has the cores now
        if (rank == 0 && round >= 4) seconds[kind].push_back(took.count());
        together.arrive_and_wait();
      }
    });
  }
  ranks.clear();
  return {median(std::move(seconds[0])), median(std::move(seconds[1]))};
}

void run() {
  for (const std::size_t bytes : {96, 4096, 65'536, 262'144, 1 << 20}) {
    const double plain = message_seconds(bytes, {});
    const double tagged = message_seconds(bytes, secret());
    fmt::print("message of {} bytes: {:.1f} us without tag, {:.1f} us with: both ends {:.2f} us\n",
               bytes, 1e6 * plain, 1e6 * tagged, 1e6 * (tagged - plain));
  }
  for (const char* const link : {"1gbit", "1gbit,1ms"}) {
    for (const char* const spec : {"fp32", "dqsg", "topk:density=0.01"}) {
      for (const std::size_t floats : {65'536, 1 << 20, 1 << 23}) {
        const int rounds = floats > (1 << 20) ? 15 : 61;
        const auto [without, with] = reduce_seconds(spec, floats, rounds, link);
        fmt::print("{} of {:.2f} MB at {}: {:.3f} ms with tags, {:.3f} ms without: {:+.1f} %\n",
                   spec, 4e-6 * static_cast<double>(floats), link, 1e3 * with, 1e3 * without,
                   100 * (with / without - 1));
      }
    }
  }
}

}  // namespace
}  // namespace thinreduce

int main() {
  thinreduce::run();
  return EXIT_SUCCESS;
}

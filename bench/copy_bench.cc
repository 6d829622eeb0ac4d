// The cost of the copy that a failed step gives back (docs/errors.md): reduces of a virtual cluster
// with and without it.
//
//   build/release/bin/copy_bench [spec ...]
//
// Two ranks are threads of this process; each needs a core. Both kinds of reduce run in turns on
// the same gradients, and a figure is the median of its rounds. The methods are called without a
// session, so a reduce has no agreement before it. The means of both kinds must have the same bits,
// and the copy must be the gradient.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/ensure.h"
#include "thinreduce/method/method.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

constexpr int kRanks = 2;
constexpr int kWarmUp = 2;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Setting {
  std::string spec;
  std::size_t floats = 0;
  std::string link;
  int rounds = 0;
};

// One rank, which reduces the same gradient with and without a copy of it.
class Rank {
 public:
  Rank(const Setting& setting, SimulatedTransport& transport)
      : spec_(Spec::parse(setting.spec)),
        link_(Link::parse(setting.link)),
        transport_(transport),
        layout_{.id = 0, .elements = setting.floats, .tensors = {}},
        gradient_(setting.floats) {
    for (auto& method : methods_) {
      method = spec_.make({.layout = layout_, .rank = transport.rank(), .world = kRanks});
    }
    for (std::size_t i = 0; i < gradient_.size(); ++i) {
      const auto place = i * 7919 + static_cast<std::size_t>(transport.rank());
      gradient_[i] = static_cast<float>(place % 1000) / 1000.0F - 0.5F;
    }
  }

  // Returns the virtual seconds of a reduce, in memory that keeps the mean.
  double reduce(std::uint64_t step, bool copies) {
    std::vector<float>& values = means_[copies ? 1 : 0];
    values = gradient_;
    Exchange exchange(transport_, Seconds(60),
                      {.method = spec_.info->wire_id, .step = step, .elements = values.size()});
    exchange.link = link_;
    exchange.spare = &spare_[copies ? 1 : 0];
    Original original(values, memory_);
    if (copies) exchange.set_original(&original);
    transport_.align();
    const auto start = transport_.now();
    methods_[copies ? 1 : 0]->reduce(Bucket{layout_, values, {}}, exchange);
    const Seconds took = transport_.now() - start;
    if (copies) check(original);
    return took.count();
  }

 private:
  void check(Original& original) {
    ensure(means_[0] == means_[1], "a copy must not change the mean");
    original.restore();
    ensure(means_[1] == gradient_, "the copy must be the gradient");
  }

  Spec spec_;
  Link link_;
  SimulatedTransport& transport_;
  BucketLayout layout_;
  std::vector<float> gradient_;
  std::array<std::unique_ptr<Method>, 2> methods_;
  std::array<std::vector<float>, 2> means_;
  std::array<SpareBuffers, 2> spare_;
  OriginalMemory memory_;
};

// Returns the median seconds of a reduce without and with the copy.
std::array<double, 2> reduce_seconds(const Setting& setting) {
  const ClusterOptions cluster{.links = ClusterLinks::parse(setting.link), .cores = kRanks};
  auto world = simulate(connect_threads(kRanks), cluster);
  std::array<std::vector<double>, 2> seconds;
  std::vector<std::jthread> ranks;
  for (auto& transport : world) {
    ranks.emplace_back([&] {
      Rank rank(setting, *transport);
      for (int round = 0; round < kWarmUp + setting.rounds; ++round) {
        for (const bool copies : {false, true}) {
          const double took = rank.reduce(static_cast<std::uint64_t>(round), copies);
          if (transport->rank() == 0 && round >= kWarmUp) {
            seconds[copies ? 1 : 0].push_back(took);
          }
        }
      }
    });
  }
  ranks.clear();
  return {median(std::move(seconds[0])), median(std::move(seconds[1]))};
}

void run(const std::vector<std::string>& specs) {
  for (const std::string& spec : specs) {
    for (const char* const link : {"1gbit", "10gbit"}) {
      for (const std::size_t floats : {std::size_t{1} << 20, std::size_t{1} << 23}) {
        const int rounds = floats > (1U << 20) ? 15 : 61;
        const auto [without, with] = reduce_seconds({spec, floats, link, rounds});
        fmt::print("{} of {:.1f} MB at {}: {:.3f} ms with the copy, {:.3f} ms without: {:+.1f} %\n",
                   spec, 4e-6 * static_cast<double>(floats), link, 1e3 * with, 1e3 * without,
                   100 * (with / without - 1));
      }
    }
  }
}

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  std::vector<std::string> specs(argv + 1, argv + argc);
  if (specs.empty()) specs = {"fp32", "bf16", "dqsg", "terngrad"};
  thinreduce::run(specs);
  return EXIT_SUCCESS;
}

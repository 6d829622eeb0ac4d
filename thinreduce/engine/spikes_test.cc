// One huge finite gradient does not end a training: this and all later steps have finite means, and
// the state can be saved and loaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"

namespace thinreduce::spikes_test {
namespace {

constexpr int kWorld = 2;
constexpr std::uint64_t kLaterSteps = kSanitized ? 10 : 100;

struct Spike {
  const char* name;
  float size;
  std::size_t every;  // one element in this many
};
constexpr Spike kSpikes[] = {
    {"one", 1e30F, 1000}, {"many", 1e20F, 3}, {"all", 1e30F, 1}, {"tiny", 1e-40F, 1}};

void add_spike(const Spike& spike, std::vector<float>& values) {
  for (std::size_t i = spike.every / 2; i < values.size(); i += spike.every) {
    values[i] *= spike.size;
  }
}

class Spikes : public testing::TestWithParam<std::string> {
 protected:
  BucketLayout layout() const {
    BucketLayout layout{.id = 0, .elements = 0, .tensors = {}};
    layout.add("conv.weight", {16, 8, 3, 3});
    layout.add("fc.weight", {24, 40});
    return layout;
  }
  // Takes ordinary steps, one with a spike at rank 1, ordinary ones, and saves and loads.
  void run(const Spike& spike, std::uint64_t spiked, std::unique_ptr<Transport> transport) const {
    const SessionOptions options{.spec = GetParam(), .momentum_inside_ok = true};
    Session session(std::move(transport), options);
    const auto bucket = session.add_bucket(layout());
    for (std::uint64_t step = 0; step < spiked + kLaterSteps; ++step) {
      auto values = gradient(layout().elements, session.rank(), step);
      if (step == spiked && session.rank() == 1) add_spike(spike, values);
      session.submit(bucket, values).get();
      ASSERT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
          << "step " << step << " after the spike in step " << spiked;
      if (step == spiked + 1 || step + 1 == spiked + kLaterSteps) {
        const auto state = session.save_bytes();
        session.load_bytes(state);
        EXPECT_EQ(session.save_bytes(), state);
      }
    }
  }
};

TEST_P(Spikes, LeaveFiniteMeans) {
  for (const Spike& spike : kSpikes) {
    SCOPED_TRACE(spike.name);
    // In a compressed step, and in an uncompressed one from which gradiveq learns.
    std::vector<std::uint64_t> spiked{steps_of(GetParam(), 3)};
    if (const auto start = steps_of(GetParam(), 0); start > 2) spiked.push_back(start - 2);
    for (const std::uint64_t step : spiked) {
      run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
        run(spike, step, std::move(transport));
      });
    }
  }
}

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, Spikes, testing::ValuesIn(law_specs()), case_name);

}  // namespace
}  // namespace thinreduce::spikes_test

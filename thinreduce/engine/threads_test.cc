// The number of threads of a rank changes no bit: neither of the means nor of what a rank keeps,
// nor a byte that it sends. The specs come from methods(), so a new method is under this law by
// being registered.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/links.h"
#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::threads_test {
namespace {

// All that a rank shows of its work.
struct Outcome {
  std::vector<std::vector<std::uint32_t>> means;  // bits per step
  std::vector<std::uint64_t> payload_bytes;       // the same
  std::vector<std::uint64_t> bytes_sent;          // the same
  std::vector<std::byte> state;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Large enough that every loop is shared, and odd, so that the last block is shorter.
BucketLayout large_layout(bool shapes) {
  BucketLayout layout{.id = 3, .elements = 0, .tensors = {}};
  if (!shapes) {
    layout.elements = 1100009;  // several pieces of fft
    return layout;
  }
  layout.add("first.weight", {211, 1009});
  layout.add("first.bias", {211});
  layout.add("second.weight", {37, 11, 23, 7});
  return layout;
}

class Threads : public Sessions {
 protected:
  std::vector<Outcome> outcomes(int threads, const BucketLayout& layout) {
    std::vector<Outcome> all(static_cast<std::size_t>(world()));
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Session session(
          std::move(transport),
          // A given link: with a measured one, sums may travel in another way.
          {.spec = spec(), .threads = threads, .link = kOwnerLink, .momentum_inside_ok = true});
      Outcome& own = all[static_cast<std::size_t>(session.rank())];
      const auto bucket = session.add_bucket(layout);
      for (std::uint64_t step = 0; step < steps(2); ++step) {
        auto values = gradient(layout.elements, session.rank(), step);
        std::vector<float> moments;
        if (Spec::parse(spec()).info->second_moment) {
          moments = gradient(layout.elements, session.rank(), step + 1000);
          for (float& moment : moments) moment = moment * moment * 0.5F + 0.01F;
        }
        const Report report = session.submit(bucket, values, moments).get();
        own.means.push_back(bits_of(values));
        own.payload_bytes.push_back(report.payload_bytes);
        own.bytes_sent.push_back(report.bytes_sent);
      }
      own.state = session.save_bytes();
    });
    return all;
  }
};

std::vector<std::tuple<std::string, int>> thread_cases() {
  std::vector<std::tuple<std::string, int>> cases;
  const std::size_t defaults = default_specs().size();
  std::size_t seen = 0;
  for (const std::string& spec : law_specs()) {
    const bool is_default = seen++ < defaults;
    if (kSanitized && !is_default) break;  // law_specs() begins with the defaults
    if (is_default && !kSanitized) cases.emplace_back(spec, 1);
    cases.emplace_back(spec, 2);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Threads, testing::ValuesIn(thread_cases()), session_case_name);

TEST_P(Threads, ChangeNoBit) {
  const BucketLayout layout = large_layout(world() > 1);
  const auto alone = outcomes(1, layout);
  // Every method at its default with two numbers, its other words with one.
  for (const int threads : {3, 2}) {
    if (threads == 2 && (kSanitized || spec().find(':') != std::string::npos)) continue;
    const auto together = outcomes(threads, layout);
    for (std::size_t rank = 0; rank < alone.size(); ++rank) {
      SCOPED_TRACE(testing::Message() << threads << " threads, rank " << rank);
      EXPECT_TRUE(together[rank].means == alone[rank].means);
      EXPECT_TRUE(together[rank].state == alone[rank].state);
      EXPECT_EQ(together[rank].payload_bytes, alone[rank].payload_bytes);
      EXPECT_EQ(together[rank].bytes_sent, alone[rank].bytes_sent);
    }
  }
}

TEST(SessionThreads, AreRefusedOutOfRange) {
  for (const int threads : {0, -1, SessionOptions::kMaxThreads + 1}) {
    const auto text = thrown_text(ErrorCode::bad_input, [&] {
      const Session session(std::move(connect_threads(1)[0]), {.threads = threads});
    });
    EXPECT_NE(text.find("threads must be 1 to 1024, got " + std::to_string(threads)),
              std::string::npos)
        << text;
  }
}

// Two ranks need not have the same number of cores.
TEST(SessionThreads, MayDifferBetweenRanks) {
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    const int threads = 1 + 2 * transport->rank();
    Session session(std::move(transport), {.spec = "dqsg", .threads = threads});
    auto values = gradient(300007, session.rank(), 0);
    EXPECT_EQ(session.reduce(0, values).step, 1U);
  });
}

}  // namespace
}  // namespace thinreduce::threads_test

// Bases that differ between ranks are found out before they do harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <thread>

#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::gradiveq_session_test {
namespace {

constexpr std::size_t kElements = 4096;
const std::string kSpec = "gradiveq:slice=32,warmup=2,interval=5";

std::vector<float> gradient(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(kElements);
  for (auto& value : values) value = draw(random);
  return values;
}

template <typename Work>
void on_two_ranks(Work work) {
  auto transports = connect_threads(2);
  std::vector<std::jthread> ranks;
  for (unsigned rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(std::move(transports[rank]), {.spec = kSpec});
      work(session, rank);
    });
  }
}

TEST(GradiveqSession, BasesOfDifferentRunsAreAMismatch) {
  std::string folder = (std::filesystem::temp_directory_path() / "thinreduceXXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto file = [&](unsigned run, unsigned rank) {
    return std::filesystem::path(folder) / (std::to_string(run) + std::to_string(rank));
  };
  for (unsigned run = 0; run < 2; ++run) {
    on_two_ranks([&](Session& session, unsigned rank) {
      for (unsigned step = 0; step < 4; ++step) {
        auto values = gradient(1000 * run + 10 * step + rank);
        session.reduce(0, values);
      }
      session.save(file(run, rank));
    });
  }
  // Both of one run go on; one of each does not.
  for (const bool mixed : {false, true}) {
    on_two_ranks([&](Session& session, unsigned rank) {
      session.load(file(mixed ? rank : 0, rank));
      auto values = gradient(rank);
      try {
        session.reduce(0, values);
        EXPECT_FALSE(mixed);
      } catch (const Error& error) {
        EXPECT_TRUE(mixed) << error.what();
        EXPECT_EQ(error.code(), ErrorCode::mismatch);
        EXPECT_THAT(error.what(), testing::HasSubstr("rank 0"));
        EXPECT_THAT(error.what(), testing::HasSubstr("rank 1"));
        EXPECT_EQ(values, gradient(rank));
      }
    });
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace thinreduce::gradiveq_session_test

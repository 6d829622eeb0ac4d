#include "thinreduce/kernels/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "tests/test_data.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce::kernels::target_test {
namespace {

TEST(Target, ListEndsWithTheReference) {
  const auto names = available_targets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "reference");
  EXPECT_THAT(names, testing::Contains(active_target()));
}

TEST(Target, EnvironmentChooses) {
  const char* wanted = std::getenv("THINREDUCE_SIMD");
  EXPECT_EQ(active_target(), wanted != nullptr ? wanted : available_targets().front());
}

TEST(Target, SwitchesAndComesBack) {
  const auto before = active_target();
  on_every_target([] {
    std::vector<float> sum(100, 1), in(100, 2);
    add(sum, in);
    EXPECT_EQ(sum, std::vector<float>(100, 3));
  });
  EXPECT_EQ(active_target(), before);
}

TEST(Target, UnknownNameListsWhatThereIs) {
  const auto before = active_target();
  try {
    use_target("MMX");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), testing::HasSubstr("MMX"));
    for (const auto& name : available_targets()) {
      EXPECT_THAT(error.what(), testing::HasSubstr(name));
    }
  }
  EXPECT_EQ(active_target(), before);
}

TEST(Target, MayChangeWhileOtherThreadsCompute) {
  const auto before = active_target();
  std::jthread worker([] {
    for (int i = 0; i < 2000; ++i) {
      std::vector<float> sum(37, 1), in(37, 2);
      add(sum, in);
      ASSERT_EQ(sum, std::vector<float>(37, 3));
    }
  });
  for (int i = 0; i < 200; ++i) {
    for (const auto& name : available_targets()) use_target(name);
  }
  worker.join();
  use_target(before);
}

}  // namespace
}  // namespace thinreduce::kernels::target_test

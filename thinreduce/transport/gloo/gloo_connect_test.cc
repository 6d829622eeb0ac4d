// How ranks connect over Gloo, and the errors when they cannot.
#include <fmt/format.h>
#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"

namespace thinreduce::gloo_connect_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TEST(GlooConnect, NobodyAnswers) {
  GlooOptions options = options_for(1, 2, free_port());
  options.connect_timeout = Seconds(0.5);
  const Error error = error_of([&] { (void)connect_gloo(options); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(),
              HasSubstr(fmt::format("rank 1: no server answers at 127.0.0.1:{} after 0.5 s",
                                    options.master_port)));
}

TEST(GlooConnect, NamesTheRankThatNeverArrived) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([rank, port] {
      GlooOptions options = options_for(rank, 4, port);
      options.connect_timeout = Seconds(5);  // the other rank may start late
      const Error error = error_of([&] { (void)connect_gloo(options); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}: ", rank)));
      EXPECT_THAT(error.what(), HasSubstr("ranks 2, 3 did not connect within 5 s"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooConnect, WorldSizesMustAgree) {
  const std::uint16_t port = free_port();
  std::thread other([port] {
    const Error error = error_of([&] { (void)connect_gloo(options_for(1, 3, port)); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("has world size 3, rank 0 has 2"));
  });
  GlooOptions options = options_for(0, 2, port);
  options.connect_timeout = Seconds(5);
  const Error error = error_of([&] { (void)connect_gloo(options); });
  other.join();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 did not connect"));
  EXPECT_THAT(error.what(), HasSubstr("has world size 3, rank 0 has 2"));
}

TEST(GlooConnect, UnknownInterfaceListsThoseThereAre) {
  gloo::rendezvous::HashStore store;
  GlooOptions options = options_for(0, 2, 1);
  options.interface = "nosuch0";
  const Error error = error_of([&] { (void)connect_gloo(options, store); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("\"nosuch0\""));
  EXPECT_THAT(error.what(), HasSubstr("lo"));
}

TEST(GlooConnect, RankMustBeInTheWorld) {
  const Error error = error_of([] { (void)connect_gloo(options_for(2, 2, 1)); });
  EXPECT_EQ(error.code(), ErrorCode::bad_input);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 must be 0 to 1: the world has 2 ranks"));
}

class GlooEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    set("RANK", "1");
    set("WORLD_SIZE", "4");
    set("MASTER_ADDR", "10.1.2.3");
    set("MASTER_PORT", "1234");
    set("THINREDUCE_INTERFACE", "eth7");
  }
  void TearDown() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "THINREDUCE_INTERFACE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static std::string complaint() {
    const Error error = error_of([] { (void)gloo_options_from_environment(); });
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
};

TEST_F(GlooEnvironment, IsRead) {
  const GlooOptions options = gloo_options_from_environment();
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world, 4);
  EXPECT_EQ(options.master_addr, "10.1.2.3");
  EXPECT_EQ(options.master_port, 1234);
  EXPECT_EQ(options.interface, "eth7");
}

TEST_F(GlooEnvironment, SaysWhatIsWrong) {
  set("RANK", "4");
  EXPECT_THAT(complaint(), HasSubstr("RANK is \"4\"; expected the number of this rank, 0 to 3"));
  set("RANK", "1x");
  EXPECT_THAT(complaint(), HasSubstr("RANK is \"1x\""));
  set("RANK", "1");
  set("WORLD_SIZE", "0");
  EXPECT_THAT(complaint(), HasSubstr("WORLD_SIZE is \"0\""));
  set("WORLD_SIZE", "4");
  set("MASTER_PORT", "65536");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_PORT is \"65536\""));
  ::unsetenv("MASTER_PORT");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_PORT is not set"));
  ::unsetenv("MASTER_ADDR");
  EXPECT_THAT(complaint(), HasSubstr("MASTER_ADDR is not set"));
}

}  // namespace
}  // namespace thinreduce::gloo_connect_test

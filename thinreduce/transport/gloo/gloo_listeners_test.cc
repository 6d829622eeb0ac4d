// Where the processes of a world listen: only while they meet, only at the address that they use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "tests/gloo_world.h"
#include "tests/listeners.h"

namespace thinreduce::gloo_listeners_test {
namespace {

void add_own_addresses(std::set<std::string>& addresses) {
  for (const Listener& listener : own_listeners()) addresses.insert(listener.address);
}

TEST(GlooListeners, AreAtTheAddressOfTheWorldAloneAndEndWithTheMeeting) {
  std::atomic<bool> stop = false;
  std::set<std::string> seen;
  std::thread watcher([&] {
    while (!stop) add_own_addresses(seen);
  });
  constexpr int kWorld = 4;
  std::set<std::string> afterwards;
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> connected = 0;
    std::atomic<int> done = 0;
    run_gloo_ranks(kWorld, [&](Transport& transport) {
      wait_for_all(connected, kWorld);
      if (transport.rank() == 0) add_own_addresses(afterwards);
      wait_for_all(done, kWorld);
    });
  }
  stop = true;
  watcher.join();
  EXPECT_THAT(seen, testing::UnorderedElementsAre("0100007F"));
  EXPECT_THAT(afterwards, testing::IsEmpty());
}

}  // namespace
}  // namespace thinreduce::gloo_listeners_test

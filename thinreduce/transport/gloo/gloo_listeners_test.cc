// Where the processes of a world listen: only while they meet, only at the address that they use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
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
  constexpr int kWorld = 4;
  std::atomic<bool> stop = false;
  std::set<std::string> seen;
  std::atomic<bool> sees_any = false;
  std::thread watcher([&] {
    while (!stop) {
      add_own_addresses(seen);
      sees_any = !seen.empty();
    }
  });
  // The last rank keeps the others listening until the watcher has seen it.
  const auto wait_for_watcher = [&](int rank) {
    const Deadline end = Deadline::after(Seconds(120));
    while (rank == kWorld - 1 && !sees_any && Clock::now() < end.at) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  std::set<std::string> afterwards;
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> connected = 0;
    std::atomic<int> done = 0;
    run_gloo_ranks(
        kWorld,
        [&](Transport& transport) {
          wait_for_all(connected, kWorld);
          if (transport.rank() == 0) add_own_addresses(afterwards);
          wait_for_all(done, kWorld);
        },
        wait_for_watcher);
  }
  stop = true;
  watcher.join();
  EXPECT_THAT(seen, testing::UnorderedElementsAre("0100007F"));
  EXPECT_THAT(afterwards, testing::IsEmpty());
}

}  // namespace
}  // namespace thinreduce::gloo_listeners_test

// Where the processes of a world listen: only while they meet, only at the address that they use.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/gloo_world.h"

namespace thinreduce {
namespace {

// Returns the addresses at which this process listens, as /proc spells them: 0100007F is 127.0.0.1.
std::set<std::string> own_listeners() {
  std::set<std::string> listeners;
  std::multimap<std::string, std::string> all;  // by inode
  // The table comes first: a socket that is in it and no longer open is not this process's problem.
  for (const char* const path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retries, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
          inode;
      if (state == "0A") all.emplace("socket:[" + inode + "]", local.substr(0, local.find(':')));
    }
  }
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char target[64] = {};
    if (::readlinkat(::dirfd(folder), entry->d_name, target, sizeof(target) - 1) <= 0) continue;
    const auto [begin, end] = all.equal_range(target);
    for (auto one = begin; one != end; ++one) listeners.insert(one->second);
  }
  ::closedir(folder);
  return listeners;
}

TEST(GlooListeners, AreAtTheAddressOfTheWorldAloneAndEndWithTheMeeting) {
  std::atomic<bool> stop = false;
  std::set<std::string> seen;
  std::thread watcher([&] {
    while (!stop) seen.merge(own_listeners());
  });
  constexpr int kWorld = 4;
  std::set<std::string> afterwards;
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> connected = 0;
    std::atomic<int> done = 0;
    run_gloo_ranks(kWorld, [&](Transport& transport) {
      wait_for_all(connected, kWorld);
      if (transport.rank() == 0) afterwards.merge(own_listeners());
      wait_for_all(done, kWorld);
    });
  }
  stop = true;
  watcher.join();
  EXPECT_THAT(seen, testing::UnorderedElementsAre("0100007F"));
  EXPECT_THAT(afterwards, testing::IsEmpty());
}

}  // namespace
}  // namespace thinreduce

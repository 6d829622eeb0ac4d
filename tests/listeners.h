// The TCP ports at which this process listens.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace thinreduce {

struct Listener {
  std::string address;  // as /proc spells it: 0100007F is 127.0.0.1
  std::uint16_t port;
};

inline std::vector<Listener> own_listeners() {
  std::multimap<std::string, Listener> all;  // by inode
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
      if (state != "0A") continue;
      const std::size_t colon = local.find(':');
      const auto port = std::stoul(local.substr(colon + 1), nullptr, 16);
      all.emplace("socket:[" + inode + "]",
                  Listener{local.substr(0, colon), static_cast<std::uint16_t>(port)});
    }
  }
  std::vector<Listener> listeners;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char target[64] = {};
    if (::readlinkat(::dirfd(folder), entry->d_name, target, sizeof(target) - 1) <= 0) continue;
    const auto [begin, end] = all.equal_range(target);
    for (auto one = begin; one != end; ++one) listeners.push_back(one->second);
  }
  ::closedir(folder);
  return listeners;
}

}  // namespace thinreduce

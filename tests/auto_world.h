// Sessions with the spec `auto` in a virtual cluster.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

inline constexpr std::size_t kElements = 40'000;

// A virtual cluster whose ranks compute in no time, so that times follow from the links alone and
// plans do not depend on this machine.
inline std::vector<std::unique_ptr<SimulatedTransport>> make_cluster(const std::string& links,
                                                                     int world) {
  return simulate(connect_threads(world), {.links = ClusterLinks::parse(links),
                                           .cpu_time = [] { return std::chrono::nanoseconds(0); }});
}

// Runs `work` on every rank of a virtual cluster.
inline void on_cluster(const std::string& links, int world, const SessionOptions& options,
                       const std::function<void(Session&)>& work) {
  auto ranks = make_cluster(links, world);
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, transport = std::shared_ptr<Transport>(std::move(rank))] {
      Session session(transport, options);
      work(session);
    });
  }
}

}  // namespace thinreduce

// Ranks over Gloo as threads of one process.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {

inline GlooOptions options_for(int rank, int world, std::uint16_t port) {
  GlooOptions options;
  options.rank = rank;
  options.world = world;
  options.master_port = port;
  return options;
}

// Guards against hangs; generous, because a test must pass on a busy machine.
inline Deadline soon() {
  return Deadline::after(Seconds(120));
}

// Runs `body` on each rank of a world, each on its own thread.
inline void run_gloo_ranks(
    int world, const std::function<void(Transport&)>& body,
    const std::function<void(int rank)>& before_connecting = [](int) {}) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        before_connecting(rank);
        const auto transport = connect_gloo(options_for(rank, world, port));
        EXPECT_EQ(transport->rank(), rank);
        EXPECT_EQ(transport->size(), world);
        body(*transport);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits until all ranks are here, so that none leaves while another one needs it.
inline void wait_for_all(std::atomic<int>& here, int world) {
  const Deadline end = Deadline::after(Seconds(60));
  ++here;
  while (here < world && Clock::now() < end.at) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 97) & 255);
  }
  return bytes;
}

// Returns the Error that `action` throws; anything else fails the test.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "not an Error: " << e.what();
    return Error(ErrorCode::bad_frame, "");
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::bad_frame, "");
}

}  // namespace thinreduce

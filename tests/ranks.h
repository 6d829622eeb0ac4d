// Runs the same function on N ranks as threads, each with its own transport.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

using RankFunction = std::function<void(std::unique_ptr<Transport>)>;

// Returns the exception of each rank; null for a rank that returned.
inline std::vector<std::exception_ptr> try_ranks(int world, const RankFunction& work) {
  auto transports = connect_threads(world);
  std::vector<std::exception_ptr> thrown(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(std::move(transports[rank]));
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

// Returns the message of an Error with the given code; anything else fails the test.
inline std::string error_text(const std::exception_ptr& thrown, ErrorCode code) {
  if (!thrown) {
    ADD_FAILURE() << "nothing was thrown, expected " << to_string(code);
    return "";
  }
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
    return error.what();
  }
}

// Returns the message of the Error that `work` throws.
template <typename Work>
std::string thrown_text(ErrorCode code, Work&& work) {
  std::exception_ptr thrown;
  try {
    work();
  } catch (...) {
    thrown = std::current_exception();
  }
  return error_text(thrown, code);
}

// Rank 2 of 4 fails before it calls `reduce`: the calls of all others must end with an error that
// names it.
inline void expect_all_name_a_lost_rank(const std::function<void(Transport&)>& reduce) {
  const auto thrown = try_ranks(4, [&](std::unique_ptr<Transport> transport) {
    try {
      if (transport->rank() == 2) throw Error(ErrorCode::bad_input, "rank 2 fails on purpose");
      reduce(*transport);
    } catch (const Error& error) {
      transport->abandon(error.what());
      throw;
    }
  });
  for (const std::size_t rank : {0U, 1U, 3U}) {
    const auto text = error_text(thrown[rank], ErrorCode::lost_peer);
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
  }
}

// Like try_ranks, but an exception fails the test.
inline void run_ranks(int world, const RankFunction& work) {
  const auto thrown = try_ranks(world, work);
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    if (!thrown[rank]) continue;
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
  }
}

}  // namespace thinreduce

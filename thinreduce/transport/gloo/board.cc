#include "thinreduce/transport/gloo/board.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

using std::chrono::milliseconds;

std::string key(int rank, const std::string& topic) {
  return fmt::format("{}/{}", topic, rank);
}

Error failed(int rank, const std::exception& e) {
  return Error(
      ErrorCode::unavailable,
      fmt::format("rank {}: the store through which the ranks meet failed: {}", rank, e.what()));
}

}  // namespace

void StoreBoard::post(const std::string& topic, const std::vector<char>& value) {
  try {
    store_.set(key(rank_, topic), value);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw failed(rank_, e);
  }
}

std::optional<std::vector<char>> StoreBoard::read(int rank, const std::string& topic,
                                                  const Deadline& deadline) {
  const std::string wanted = key(rank, topic);
  const auto left = std::chrono::ceil<milliseconds>(deadline.at - Clock::now());
  try {
    store_.wait({wanted}, std::max(left, milliseconds(1)));
    return store_.get(wanted);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout) throw;
  } catch (const std::exception& e) {
    // Stores of Gloo throw the same exception for a timeout and for other failures.
    if (Clock::now() < deadline.at) throw failed(rank_, e);
  }
  return std::nullopt;
}

}  // namespace thinreduce

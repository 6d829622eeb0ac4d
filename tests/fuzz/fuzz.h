// Helpers that all fuzz drivers share.
//
// A driver is a file that defines run() and seeds(). It feeds one input to the code under test.
// Refusing the input with an Error is right; a crash, another exception, an Error{internal} or a
// broken promise is a finding and ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/error.h"

namespace thinreduce::fuzz {

using Bytes = std::vector<std::byte>;

// Returns valid inputs of the driver, from which others are made. The same in every run.
std::vector<Bytes> seeds();

[[noreturn]] inline void fail(std::string_view why) {
  std::fprintf(stderr, "FINDING: %.*s\n", static_cast<int>(why.size()), why.data());
  std::abort();
}

inline void expect(bool holds, std::string_view law) {
  if (!holds) fail(law);
}

// Prints why inputs are refused if THINREDUCE_FUZZ_TRACE is set.
inline void trace(const char* why) {
  static const bool prints = std::getenv("THINREDUCE_FUZZ_TRACE") != nullptr;
  if (prints) std::fprintf(stderr, "refused: %s\n", why);
}

// Runs `work`; returns whether it was accepted, and not refused with an Error.
template <typename Work>
bool accepts(Work&& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) fail(error.what());
    trace(error.what());
    return false;
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// Takes an input apart. Past the end, numbers are 0 and runs of bytes are shorter.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  template <typename T>
  T value() {
    T value{};
    const auto bytes = take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // Returns the next `count` bytes, or as many as there are.
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = rest_.first(count < rest_.size() ? count : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return take(rest_.size()); }
  std::string_view text() {
    const auto bytes = rest();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

// Returns a copy whose memory ends where the bytes do, so that a sanitizer sees a read beyond them.
inline Bytes copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

// Feeds one input to the code under test.
void run(Input input);

// Appends values to a seed.
template <typename T>
void put(Bytes& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}
inline void put_bytes(Bytes& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
inline void put_text(Bytes& out, std::string_view text) {
  put_bytes(out, std::as_bytes(std::span(text)));
}
inline Bytes text_seed(std::string_view text) {
  Bytes seed;
  put_text(seed, text);
  return seed;
}

}  // namespace thinreduce::fuzz

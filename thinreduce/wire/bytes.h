// Little-endian values in byte spans, every access checked.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "thinreduce/ensure.h"

namespace thinreduce {

// The formats are little-endian and payloads are copied as they lie in memory, so the host must be
// little-endian.
static_assert(std::endian::native == std::endian::little);

template <typename T>
concept PlainValue = std::is_arithmetic_v<T>;

template <PlainValue T>
[[nodiscard]] T load_value(std::span<const std::byte> bytes, std::size_t offset,
                           Place place = Place::current()) {
  T value;
  ensure(offset + sizeof(T) <= bytes.size(), {"load_value: the value must lie in the span", place},
         offset, sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <PlainValue T>
void store_value(std::span<std::byte> bytes, std::size_t offset, T value,
                 Place place = Place::current()) {
  ensure(offset + sizeof(T) <= bytes.size(), {"store_value: the value must lie in the span", place},
         offset, sizeof(T), bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <typename T>
[[nodiscard]] std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// Reads values one after another from untrusted input.
class ByteReader {
 public:
  // `what` names the input in errors, as in "top-k payload of rank 3"; it must outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view what) : rest_(bytes), what_(what) {}
  template <std::same_as<std::string> Temporary>
  ByteReader(std::span<const std::byte> bytes, Temporary&& what) = delete;

  template <PlainValue T>
  [[nodiscard]] T value() {
    return load_value<T>(take(sizeof(T)), 0);
  }
  // Returns the next `count` bytes. Throws Error{bad_frame} if there are fewer.
  [[nodiscard]] std::span<const std::byte> take(std::size_t count);
  [[nodiscard]] std::size_t left() const { return rest_.size(); }
  // Throws Error{bad_frame} if bytes are left.
  void finish() const;

 private:
  std::span<const std::byte> rest_;
  std::string_view what_;
};

}  // namespace thinreduce

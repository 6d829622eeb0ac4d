// Reads one payload of variance-based compression, a run of elements at a time, so that the
// payloads of all ranks can be added to a run while it is in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/methods/variance/payload.h"
#include "thinreduce/wire/rice.h"

namespace thinreduce {

// Reads one untrusted payload, which must not be empty. Every function throws Error{bad_frame} that
// names the rank if the payload is invalid.
class VarianceReader {
 public:
  struct Source {
    const VarianceFormat& format;
    std::span<const VarianceTensor> tensors;
    std::span<const std::byte> payload;
    int rank = 0;
  };
  explicit VarianceReader(const Source& source);
  VarianceReader(const VarianceReader&) = delete;
  VarianceReader& operator=(const VarianceReader&) = delete;

  // Enclose the calls of add_below() for one tensor. Tensors must come in order.
  void begin_tensor(std::size_t tensor, float share);
  void end_tensor();
  // Adds share * value at all indices below `end` that were not added yet; `out` is the tensor.
  void add_below(std::size_t end, std::span<float> out);
  // Checks the end of the payload; must be called after the last tensor.
  void finish() const;
  // Returns the number of values of all tensors.
  [[nodiscard]] std::size_t values() const { return total_; }

 private:
  struct Part {
    std::size_t count = 0;
    std::uint32_t exponent = 0;
    unsigned low = 0;  // low bits of the gaps' Rice code
  };
  // Indices are decoded a few at a time; those past the current run wait for the next one.
  static constexpr std::size_t kBatch = RiceReader::kBatch;
  struct Batch {
    std::array<std::uint64_t, kBatch> indices{};
    std::size_t at = 0;
    std::size_t size = 0;
  };

  void read_parts(std::span<const std::byte> bytes);
  void fill_scaled();
  template <typename Value>
  void add_words(std::size_t end, std::span<float> out, const Value& value);
  template <typename Value>
  void add_compact(std::size_t end, std::span<float> out, const Value& value);
  [[nodiscard]] std::uint32_t code_at(std::size_t i) const;
  [[nodiscard]] float scaled_code(std::uint32_t code) const;
  [[nodiscard]] float scaled_float(std::size_t i) const;
  [[noreturn]] void refuse(std::size_t tensor, const std::string& why) const;
  [[noreturn]] void refuse_index(std::uint64_t index) const;

  const VarianceFormat& format_;
  std::span<const VarianceTensor> tensors_;
  std::string what_;  // name of the payload in errors
  std::vector<Part> parts_;
  std::size_t total_ = 0;  // number of values in all parts
  std::span<const std::byte> words_;
  std::span<const std::byte> values_;
  BitReader gaps_;

  // The current tensor.
  std::size_t tensor_ = 0;
  float share_ = 0;
  std::array<float, 16> scaled_{};  // share * value, by code
  bool all_codes_ = false;          // every code is valid
  std::size_t next_value_ = 0;      // index of the next value, counted over all parts
  std::size_t end_value_ = 0;
  std::uint64_t next_index_ = 0;  // smallest index that may follow
  std::optional<RiceReader> rice_;
  Batch found_;
};

}  // namespace thinreduce

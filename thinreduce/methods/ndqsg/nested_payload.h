// The payload of a rank that sends nested codes. Each run of kRunElements elements is sent nested,
// or in plain codes where nested ones would be decoded wrongly. docs/methods/ndqsg.md specifies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/methods/quantize/block_quantizer.h"

namespace thinreduce {

struct NestedPayload {
  // Elements per flag: few, since one wrong element makes the whole run plain; the flag costs 1/64
  // bit per element.
  static constexpr std::size_t kRunElements = 64;

  struct Shape {
    BlockQuantizer quantizer;
    std::uint32_t ratio = 3;  // number of nested codes
    bool entropy = true;
  };

  explicit NestedPayload(const Shape& payload_shape);

  // Calls visit(run, offset, count) for the runs of elements [first, first + count); `first` must
  // be where a run begins.
  template <typename Visit>
  static void for_runs(std::size_t first, std::size_t count, Visit&& visit) {
    for (std::size_t at = 0; at < count; at += kRunElements) {
      visit((first + at) / kRunElements, at, std::min(kRunElements, count - at));
    }
  }

  // Empties the payload, for a step with another alpha.
  void clear();
  // Appends a run's codes: nested ones, or plain ones.
  void append(std::span<const std::uint32_t> codes, bool plain);
  // Counts a run's plain codes, whichever are sent, for `plain_bytes`.
  void count_plain(std::span<const std::uint32_t> codes);
  // Replaces `codes` by those of the next run; returns whether they are plain.
  bool next(std::span<std::uint32_t> codes);
  [[nodiscard]] double nested_fraction() const;

  // Returns the maximum size in bytes.
  [[nodiscard]] std::size_t limit() const;
  void write(std::vector<std::byte>& out);
  // Throws Error{bad_frame}, in which `what` names the payload, for impossible bytes.
  void read(std::span<const std::byte> payload, const std::string& what);

  float alpha = 1;
  std::uint32_t failures = 0;     // elements that are decoded wrongly
  std::uint32_t plain_bytes = 0;  // about as many as plain codes of all elements would take
  std::vector<float> scales;      // per block

 private:
  [[nodiscard]] std::size_t runs() const {
    return (shape_.quantizer.elements() + kRunElements - 1) / kRunElements;
  }
  [[nodiscard]] std::size_t expected_plain_bytes() const;
  // Returns the number of elements that are flagged as plain.
  [[nodiscard]] std::size_t plain_elements() const;

  Shape shape_;
  std::vector<std::byte> flags_;             // a bit per run; 1: plain
  std::vector<std::uint64_t> plain_counts_;  // by plain code
  std::vector<std::uint8_t> nested_, plain_;
  std::size_t run_ = 0;  // the next run, and its places in the codes
  std::size_t nested_at_ = 0, plain_at_ = 0;
};

}  // namespace thinreduce

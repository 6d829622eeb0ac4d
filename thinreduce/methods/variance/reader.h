// Reads what a rank sent by variance-based compression, a run of elements at a time, so that the
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

// One payload, which nobody vouches for; not an empty one. Every function throws Error{bad_frame}
// that names the rank when anything is wrong.
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

  // The tensors come in order. Between the two, values of this one are added.
  void begin_tensor(std::size_t tensor, float share);
  void end_tensor();
  // Adds share * value at all places below `end` that have not come yet; `out` is the tensor.
  void add_below(std::size_t end, std::span<float> out);
  // After the last tensor.
  void finish() const;

 private:
  struct Part {
    std::size_t count = 0;
    std::uint32_t exponent = 0;
    unsigned low = 0;  // bits of a gap's Rice code
  };
  // Places are found a few at a time; those beyond the run at hand wait.
  static constexpr std::size_t kBatch = RiceReader::kBatch;
  struct Batch {
    std::array<std::uint64_t, kBatch> places{};
    std::size_t at = 0;
    std::size_t size = 0;
  };

  void read_parts(std::span<const std::byte> bytes);
  void fill_shares();
  template <typename Value>
  void add_words(std::size_t end, std::span<float> out, const Value& value);
  template <typename Value>
  void add_compact(std::size_t end, std::span<float> out, const Value& value);
  [[nodiscard]] std::uint32_t code_at(std::size_t i) const;
  [[nodiscard]] float share_of_code(std::uint32_t code) const;
  [[nodiscard]] float share_of_whole(std::size_t i) const;
  [[noreturn]] void refuse(std::size_t tensor, const std::string& why) const;
  [[noreturn]] void refuse_place(std::uint64_t place) const;

  const VarianceFormat& format_;
  std::span<const VarianceTensor> tensors_;
  std::string what_;  // names the payload in errors
  std::vector<Part> parts_;
  std::size_t total_ = 0;  // values of all parts
  std::span<const std::byte> words_;
  std::span<const std::byte> values_;
  BitReader gaps_;

  // Of the tensor at hand.
  std::size_t tensor_ = 0;
  float share_ = 0;
  std::array<float, 16> shares_{};  // share * value of every code
  bool all_codes_ = false;          // none of them is wrong
  std::size_t next_value_ = 0;      // of all parts' values, the next that is added
  std::size_t end_value_ = 0;
  std::uint64_t next_place_ = 0;  // the lowest that may come
  std::optional<RiceReader> rice_;
  Batch found_;
};

}  // namespace thinreduce

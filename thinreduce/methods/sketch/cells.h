// The cells of all ranks' sketches, summed by owners, as halves on the wire.
//
// Every part and every answer has a scale of its own, a power of two that brings its largest cell
// near the largest half, so the ranks need not agree on one first. The owner adds in float32.
#pragma once

#include <span>
#include <vector>

#include "thinreduce/collective/owner.h"

namespace thinreduce {

class HalfCells final : public OwnerCodec {
 public:
  // Replaces `cells` by their sum over all ranks, rounded to halves.
  explicit HalfCells(std::span<float> cells) : cells_(cells) {}

  [[nodiscard]] std::size_t units() const override { return cells_.size(); }
  [[nodiscard]] std::size_t unit_elements() const override { return 1; }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override;
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override;
  [[nodiscard]] bool fixed_lengths() const override { return true; }

  void encode_part(Range range, std::vector<std::byte>& out) override;
  void begin_sum(Range range) override;
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override;
  void encode_answer(Range range, std::vector<std::byte>& out) override;
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override;

 private:
  // Decodes the cells of a range that `rank` has sent.
  void read(Range range, int rank, std::span<const std::byte> bytes, std::span<float> into);

  std::span<float> cells_;
  std::vector<float> sum_;   // of one piece
  std::vector<float> part_;  // the same of one rank
};

}  // namespace thinreduce

// Sums dithered codes: they add as integers, because all ranks quantize with the same
// step sizes. The dither of all ranks is subtracted once, at the end.
//
// A unit is kernels::kCodesPerPack elements. A partial sum over h ranks has 2hM + 1 possible values
// and is packed accordingly.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/original.h"
#include "thinreduce/collective/sum_codec.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/methods/quantize/block_quantizer.h"
#include "thinreduce/methods/quantize/pack.h"

namespace thinreduce {

// Kept from step to step, so that only the first step allocates.
struct DitheredSumBuffers {
  std::vector<std::byte> own;   // this rank's codes
  std::vector<std::byte> sums;  // partial sums, then the complete sums
};

struct DitheredSumSetup {
  BlockQuantizer quantizer;
  std::span<const float> source;  // this rank's gradient; may be `mean`
  std::span<float> mean;          // the result
  std::span<float> scales;        // per block; agreed between the ranks
  // With one rank: `scales` is measured block by block just before quantization. Only if
  // measures_units().
  bool measure = false;
  double clip = 0;
  std::span<const kernels::RandomKey> keys;  // streams of all ranks
  int rank = 0;
  Workers workers = {};
  Original* original = nullptr;  // where the gradient is kept before `mean` replaces it
};

class DitheredSum final : public SumCodec {
 public:
  DitheredSum(const DitheredSumSetup& setup, DitheredSumBuffers& buffers);

  [[nodiscard]] std::size_t units() const override;
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(Range range, int summed) override;
  void encode(Range range) override;
  void add(Range range, int summed, std::span<const std::byte> incoming, int peer) override;
  void add_part(Range range, int summed, std::span<const std::byte> part, int peer) override;
  void decode(Range range, int peer) override;

  // Returns whether no block of the quantizer crosses a unit.
  [[nodiscard]] static bool measures_units(const BlockQuantizer& quantizer) {
    return kernels::kCodesPerPack % quantizer.grid.block() == 0;
  }

  // Subtracts the values that this rank has sent, so that `values` holds this rank's error.
  void subtract_own(std::span<float> values);

 private:
  using Codes = std::array<std::uint32_t, kernels::kCodesPerPack>;

  [[nodiscard]] int world() const { return static_cast<int>(setup_.keys.size()); }
  [[nodiscard]] std::size_t elements_before(std::size_t unit) const;
  [[nodiscard]] std::size_t packed_bytes(Range range, int summed) const;
  // Returns the bytes of one unit within the bytes of its range.
  [[nodiscard]] Range bytes_of_unit(Range range, std::size_t unit, int summed) const;
  // Codes of a range, summed over `summed` ranks, that rank `peer` has sent.
  struct Packed {
    std::span<const std::byte> bytes;
    int summed;
    int peer;
  };
  // Unpacks one unit, padded with zeros; returns the number of its elements.
  std::size_t unpack_unit(const Packed& packed, Range range, std::size_t unit, Codes& codes) const;
  void check(std::uint32_t largest_code, const Packed& packed) const;
  // Calls work(unit) for all units of a range, on all threads.
  template <typename Work>
  void for_units(Range range, const Work& work) const;
  void encode_unit(Range range, std::size_t unit);
  // Packs the codes of one unit, padded with zeros, into its place in wire(range, summed).
  void pack_unit(std::span<const std::uint32_t> codes, Range range, std::size_t unit, int summed);

  DitheredSumSetup setup_;
  DitheredSumBuffers& buffers_;
  std::vector<kernels::Packing> packings_;  // by number of ranks in the sum, minus one
  std::vector<std::uint32_t> part_sums_;    // of add_part()
};

}  // namespace thinreduce

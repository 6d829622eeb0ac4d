// The codes of dithered quantization on their way round a ring: they add as integers, because all
// ranks quantize with the same steps. The dither of all ranks is subtracted once, at the end.
//
// A unit is kernels::kPackUnit elements; a partial sum over h ranks has 2hM + 1 symbols and travels
// in the packing for so many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/ring.h"
#include "thinreduce/methods/quantize/block_quantizer.h"
#include "thinreduce/methods/quantize/pack.h"

namespace thinreduce {

// Kept from step to step, so that no step but the first allocates.
struct DitheredSumBuffers {
  std::vector<std::byte> own;   // this rank's codes
  std::vector<std::byte> sums;  // partial sums, then the complete ones
};

struct DitheredSumSetup {
  BlockQuantizer grid;
  std::span<const float> source;  // this rank's gradient; may be `mean`
  std::span<float> mean;          // what comes out
  std::span<float> largest;       // a block; agreed between the ranks
  // Of this rank alone: `largest` is measured block by block just before the codes are made.
  bool measure = false;
  double clip = 0;
  std::span<const kernels::RandomKey> keys;  // of all ranks
  int rank = 0;
};

class DitheredRing final : public RingPayload {
 public:
  DitheredRing(const DitheredSumSetup& setup, DitheredSumBuffers& buffers);

  [[nodiscard]] std::size_t units() const override;
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int summed) override;
  void encode(UnitRange range) override;
  void add(UnitRange range, int summed, std::span<const std::byte> incoming) override;
  void decode(UnitRange range) override;

  // Subtracts what this rank has sent from `values`: the rest is its error.
  void subtract_own(std::span<float> values);

 private:
  using Unit = std::array<std::uint32_t, kernels::kPackUnit>;

  [[nodiscard]] int world() const { return static_cast<int>(setup_.keys.size()); }
  [[nodiscard]] std::size_t elements_before(std::size_t unit) const;
  [[nodiscard]] std::size_t packed_bytes(UnitRange range, int summed) const;
  // The part of a range's bytes that belongs to one of its units.
  [[nodiscard]] UnitRange bytes_of_unit(UnitRange range, std::size_t unit, int summed) const;
  // One unit's codes; the tail of the last is zero. Returns how many are elements.
  std::size_t unpack_unit(std::span<const std::byte> bytes, UnitRange range, std::size_t unit,
                          int summed, Unit& codes) const;
  void check(std::uint32_t largest_code, int summed) const;

  DitheredSumSetup setup_;
  DitheredSumBuffers& buffers_;
  std::vector<kernels::Packing> packings_;  // by number of ranks in the sum, less one
  Unit codes_{};
  Unit incoming_{};
};

}  // namespace thinreduce

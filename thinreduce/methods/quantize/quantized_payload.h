// The payload of quantizers that gather: one scale per block, then one code per element, packed or,
// where that is shorter, entropy coded. docs/methods/dqsg.md specifies it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "thinreduce/methods/quantize/pack.h"
#include "thinreduce/wire/entropy.h"

namespace thinreduce {

struct QuantizedFormat {
  std::size_t elements = 0;
  std::size_t blocks = 0;     // number of scales
  std::uint32_t symbols = 3;  // number of different codes, at most 256
  bool entropy = true;        // entropy coding where that is shorter
};

class QuantizedPayload {
 public:
  explicit QuantizedPayload(const QuantizedFormat& format);

  // Returns the maximum size of a payload in bytes.
  [[nodiscard]] std::size_t limit() const { return limit(format_.elements, format_.blocks); }
  [[nodiscard]] std::size_t limit(std::size_t elements, std::size_t blocks) const;

  // Changes the number of elements and scales.
  void resize(std::size_t elements, std::size_t blocks);

  // Writes the codes of elements [first, first + codes.size()). Called in order, with at most
  // kernels::kCodesPerPack codes.
  using MakeCodes = std::function<void(std::size_t first, std::span<std::uint32_t> codes)>;
  // Appends the payload to `out`. `make` may fill `scales`.
  void write(std::span<const float> scales, const MakeCodes& make, std::vector<std::byte>& out);

  // Takes codes back, in the same pieces.
  using OnCodes = std::function<void(std::size_t first, std::span<const std::uint32_t> codes)>;
  // Reads an untrusted payload; fills `scales` before the first call of `on_codes`. Throws
  // Error{bad_frame}, in which `what` names the payload, for anything that write() does not write;
  // `on_codes` may have been called by then.
  void read(std::span<const std::byte> payload, std::string_view what, std::span<float> scales,
            const OnCodes& on_codes);

 private:
  using Codes = std::array<std::uint32_t, kernels::kCodesPerPack>;

  void write_packed(std::size_t first, std::size_t count, const MakeCodes& make,
                    std::vector<std::byte>& out);
  void read_packed(std::span<const std::byte> bytes, std::size_t first, std::size_t count,
                   std::string_view what, const OnCodes& on_codes);

  QuantizedFormat format_;
  kernels::Packing packing_;
  EntropyCoder coder_;
  std::vector<std::uint8_t> symbols_;  // codes of one run, for entropy coding
  Codes codes_{};
};

// Throws an Error{bad_frame}, in which `what` names the payload, unless a peer's scale of a block
// is finite (otherwise the peer's gradient plus residual has overflowed) and not negative.
void check_scale(float scale, std::size_t block, std::string_view what);

}  // namespace thinreduce

// The payload of quantizers that gather: a scale for every block, then a code for every element,
// packed or, where it pays, entropy coded. docs/methods/dqsg.md specifies it.
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

struct CodeFormat {
  std::size_t elements = 0;
  std::size_t blocks = 0;     // as many scales
  std::uint32_t symbols = 3;  // at most 256
  bool entropy = true;        // where it pays
};

class QuantizedPayload {
 public:
  explicit QuantizedPayload(const CodeFormat& format);

  // The longest payload.
  [[nodiscard]] std::size_t limit() const;

  // Makes the codes of elements [first, first + codes.size()), in order, at most
  // kernels::kPackUnit at a time.
  using MakeCodes = std::function<void(std::size_t first, std::span<std::uint32_t> codes)>;
  // Appends to `out`. `scales` may be filled by `make`.
  void write(std::span<const float> scales, const MakeCodes& make, std::vector<std::byte>& out);

  // Gets them back in the same pieces.
  using OnCodes = std::function<void(std::size_t first, std::span<const std::uint32_t> codes)>;
  // Fills `scales` before the first call. Throws Error{bad_frame}, in which `what` names the
  // payload, for anything that write() does not write; some codes may then have been given.
  void read(std::span<const std::byte> payload, std::string_view what, std::span<float> scales,
            const OnCodes& on_codes);

 private:
  using Unit = std::array<std::uint32_t, kernels::kPackUnit>;

  void write_packed(std::size_t first, std::size_t count, const MakeCodes& make,
                    std::vector<std::byte>& out);
  void read_packed(std::span<const std::byte> bytes, std::size_t first, std::size_t count,
                   std::string_view what, const OnCodes& on_codes);

  CodeFormat format_;
  kernels::Packing packing_;
  EntropyCoder coder_;
  std::vector<std::uint8_t> symbols_;  // of one run
  Unit codes_{};
};

}  // namespace thinreduce

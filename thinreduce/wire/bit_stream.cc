#include "thinreduce/wire/bit_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinreduce/kernels/bit_loops.h"

namespace thinreduce {

// Fewer than 32 bits are held between calls, so 32 more always fit.
void BitWriter::flush_half() {
  const auto low = static_cast<std::uint32_t>(held_);
  const std::size_t end = bytes_.size();
  bytes_.resize(end + sizeof(low));
  std::memcpy(&bytes_[end], &low, sizeof(low));
  held_ >>= 32;
  used_ -= 32;
}

void BitWriter::put_unary(std::uint64_t zeros) {
  for (; zeros >= 32; zeros -= 32) put(0, 32);
  put(std::uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
}

void BitWriter::finish() {
  for (; used_ > 0; used_ -= std::min(used_, 8u)) {
    bytes_.push_back(static_cast<std::byte>(held_));
    held_ >>= 8;
  }
  held_ = 0;
}

std::uint64_t BitReader::take_unary(std::uint64_t limit) {
  std::uint64_t zeros = 0;
  while (zeros <= limit) {
    const std::uint64_t word = peek();
    const auto here = static_cast<unsigned>(std::countr_zero(word));
    if (here < kSure) {
      at_ += here + 1;
      return zeros + here;
    }
    zeros += kSure;
    at_ += kSure;
  }
  return zeros;
}

void pack_codes(std::span<const std::uint16_t> codes, unsigned bits,
                std::vector<std::byte>& bytes) {
  const std::size_t start = bytes.size();
  bytes.resize(start + packed_bytes(codes.size(), bits));
  kernels::pack_bits(codes, bits, std::span(bytes).subspan(start));
}

std::uint16_t unpack_codes(std::span<const std::byte> bytes, unsigned bits,
                           std::span<std::uint16_t> codes) {
  return kernels::unpack_bits(bytes, bits, codes);
}

}  // namespace thinreduce

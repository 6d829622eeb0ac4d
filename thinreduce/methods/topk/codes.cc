#include "thinreduce/methods/topk/codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/bf16.h"
#include "thinreduce/methods/topk/payload.h"
#include "thinreduce/wire/bit_stream.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/rice.h"

namespace thinreduce {
namespace {

constexpr std::size_t kBlockElements = 65536;
using Length = std::uint32_t;

// Returns the low bits of a Rice code that suits gaps between `values` out of `elements`: the
// largest power of two up to 0.7 of the mean gap, at which the expected code is shortest.
unsigned low_bits(std::size_t elements, std::size_t values) {
  const std::size_t scaled = elements * 45 / (64 * std::max<std::size_t>(1, values));
  return static_cast<unsigned>(std::bit_width(std::max<std::size_t>(1, scaled))) - 1;
}

struct TwoMagnitudes {
  float low = 0;
  float high = 0;
};

// Returns two magnitudes that are near the given ones: the means of those below and above their
// midpoint, which three rounds of moving it settle well enough. Magnitudes are rounded to bfloat16.
TwoMagnitudes two_magnitudes(std::span<const float> magnitudes) {
  double all = 0;
  for (const float one : magnitudes) all += static_cast<double>(one);
  double border = all / static_cast<double>(magnitudes.size());
  double low = border;
  double high = border;
  for (int round = 0; round < 3; ++round) {
    double above = 0;
    std::size_t count = 0;
    for (const float one : magnitudes) {
      if (static_cast<double>(one) <= border) continue;
      above += static_cast<double>(one);
      ++count;
    }
    if (count == 0 || count == magnitudes.size()) break;
    high = above / static_cast<double>(count);
    low = (all - above) / static_cast<double>(magnitudes.size() - count);
    border = (low + high) / 2;
  }
  std::vector<float> rounded;
  round_to_bf16(
      std::vector<float>{static_cast<float>(std::max(low, 0.0)), static_cast<float>(high)},
      rounded);
  return {rounded[0], rounded[1]};
}

}  // namespace

std::size_t TopKChunkShape::blocks() const {
  const std::size_t size = block(0).size();
  return size == 0 ? 0 : (elements + size - 1) / size;
}

Range TopKChunkShape::block(std::size_t number) const {
  const std::size_t size = std::max<std::size_t>(1, kBlockElements / chunk) * chunk;
  return {std::min(number * size, elements), std::min((number + 1) * size, elements)};
}

std::size_t TopKChunkShape::values_of(std::size_t chunk_elements) const {
  return values_to_send(density, chunk_elements);
}

void TopKCodeWriter::write(std::span<const std::uint32_t> offsets, std::span<const float> values,
                           std::size_t chunk_elements, std::size_t wanted, BitWriter& bits,
                           std::vector<float>& sent) {
  ensure(offsets.size() <= wanted, "top-k: a chunk has more values than wanted", offsets.size(),
         wanted);
  bits.put_unary(wanted - offsets.size());
  if (offsets.empty()) return;
  magnitudes_.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) magnitudes_[i] = std::abs(values[i]);
  const TwoMagnitudes two = two_magnitudes(magnitudes_);
  const float border = two.low + (two.high - two.low) / 2;
  bits.put(kernels::bf16_of(two.low), 16);
  bits.put(kernels::bf16_of(two.high), 16);
  const unsigned low = low_bits(chunk_elements, wanted);
  std::size_t next = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    put_rice(bits, offsets[i] - next, low);
    next = offsets[i] + 1;
    const bool is_high = magnitudes_[i] > border;
    const bool negative = values[i] < 0;
    bits.put((is_high ? 2U : 0U) | (negative ? 1U : 0U), 2);
    const float magnitude = is_high ? two.high : two.low;
    sent.push_back(negative ? -magnitude : magnitude);
  }
}

std::size_t topk_code_limit(const TopKChunkShape& shape) {
  const auto chunk_bits = [&](std::size_t length) {
    const std::size_t values = shape.values_of(length);
    const unsigned low = low_bits(length, values);
    // All quotients of gaps together are below the chunk's length.
    return 1 + 32 + (length >> low) + values * (low + 4);
  };
  if (shape.elements == 0) return 0;
  const std::size_t whole = shape.elements / shape.chunk;
  const std::size_t rest = shape.elements % shape.chunk;
  const std::size_t bits = whole * chunk_bits(shape.chunk) + (rest > 0 ? chunk_bits(rest) : 0);
  return bits / 8 + shape.blocks() * (sizeof(Length) + 1) + 1;
}

void join_topk_codes(std::span<const std::vector<std::byte>> blocks,
                     std::vector<std::byte>& payload) {
  payload.resize(blocks.size() * sizeof(Length));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    store_value(std::span(payload), i * sizeof(Length), static_cast<Length>(blocks[i].size()));
  }
  for (const auto& block : blocks) payload.insert(payload.end(), block.begin(), block.end());
}

TopKCodeReader::TopKCodeReader(std::span<const std::byte> payload, int rank,
                               const TopKChunkShape& shape)
    : rank_(rank), shape_(shape) {
  if (payload.empty()) return;
  const std::string what = fmt::format("top-k payload of rank {}", rank);
  ByteReader reader(payload, what);
  std::vector<std::size_t> lengths;
  for (std::size_t block = 0; block < shape.blocks(); ++block) {
    lengths.push_back(reader.value<Length>());
  }
  for (const std::size_t length : lengths) blocks_.push_back(reader.take(length));
  reader.finish();
}

void TopKCodeReader::refuse(std::size_t block, const std::string& why) const {
  throw Error(ErrorCode::bad_frame,
              fmt::format("top-k payload of rank {}, block {}: {}", rank_, block, why));
}

void TopKCodeReader::add(std::size_t block, std::span<float> sum) const {
  if (blocks_.empty()) return;
  BitReader bits(blocks_[block]);
  const Range own = shape_.block(block);
  for (std::size_t first = own.begin; first < own.end; first += shape_.chunk) {
    add_chunk(bits, block, sum.subspan(first, std::min(shape_.chunk, own.end - first)));
  }
  if ((bits.bits_read() + 7) / 8 != blocks_[block].size()) {
    refuse(block, fmt::format("its codes take {} bits, but it has {} bytes", bits.bits_read(),
                              blocks_[block].size()));
  }
}

void TopKCodeReader::add_chunk(BitReader& bits, std::size_t block,
                               std::span<float> elements) const {
  const std::size_t wanted = shape_.values_of(elements.size());
  const std::uint64_t missing = bits.take_unary(wanted);
  if (missing > wanted) refuse(block, fmt::format("a chunk lacks more than {} values", wanted));
  if (missing == wanted) return;
  const float low_magnitude = kernels::float_of(static_cast<std::uint16_t>(bits.take(16)));
  const float high_magnitude = kernels::float_of(static_cast<std::uint16_t>(bits.take(16)));
  for (const float one : {low_magnitude, high_magnitude}) {
    if (!std::isfinite(one)) {
      throw Error::overflow(
          fmt::format("top-k payload of rank {}, block {}: a magnitude is {}; the rank's gradient "
                      "plus residual overflowed",
                      rank_, block, one));
    }
    if (std::signbit(one)) {
      refuse(block, fmt::format("magnitude {} must not be negative", one));
    }
  }
  const unsigned low = low_bits(elements.size(), wanted);
  std::size_t next = 0;
  for (std::size_t i = missing; i < wanted; ++i) {
    const std::uint64_t gap = take_rice(bits, low, elements.size() >> low);
    if (gap >= elements.size() - next) {
      refuse(block,
             fmt::format("a position lies outside its chunk of {} elements", elements.size()));
    }
    next += gap;
    const std::uint64_t code = bits.take(2);
    const float magnitude = (code & 2U) != 0 ? high_magnitude : low_magnitude;
    float& sum = elements[next];
    sum += (code & 1U) != 0 ? -magnitude : magnitude;
    if (!std::isfinite(sum)) {
      throw Error::overflow(fmt::format(
          "top-k payload of rank {}, block {}: a sum over the ranks overflowed", rank_, block));
    }
    ++next;
  }
}

}  // namespace thinreduce

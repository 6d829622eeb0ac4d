#include "thinreduce/methods/sketch/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/sketch/half.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

using Half = std::uint16_t;
constexpr int kMaxExponent = 126;  // of a scale: its inverse is a float, too

std::size_t bytes_of(Range range) {
  return sizeof(float) + range.size() * sizeof(Half);
}

// The largest half is 65504.
float scale_for(std::span<const float> values) {
  const float largest = kernels::largest_magnitude(values);
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::clamp(14 - std::ilogb(largest), -kMaxExponent, kMaxExponent));
}

// Writes the scale, then the halves.
void append(std::span<const float> values, std::vector<std::byte>& out) {
  const float scale = scale_for(values);
  const std::size_t at = out.size();
  out.resize(at + bytes_of({0, values.size()}));
  store_value(std::span(out), at, scale);
  kernels::to_half(values, scale,
                   {reinterpret_cast<Half*>(&out[at + sizeof(float)]), values.size()});
}

}  // namespace

std::size_t HalfCells::max_part_bytes(Range range) const {
  return bytes_of(range);
}
std::size_t HalfCells::max_answer_bytes(Range range) const {
  return bytes_of(range);
}

void HalfCells::encode_part(Range range, std::vector<std::byte>& out) {
  append(part(cells_, range), out);
}

void HalfCells::begin_sum(Range range) {
  const auto own = part(cells_, range);
  sum_.assign(own.begin(), own.end());
}

void HalfCells::add_part(Range range, int rank, std::span<const std::byte> bytes) {
  part_.resize(range.size());
  read(range, rank, bytes, part_);
  kernels::add(sum_, part_);
}

void HalfCells::encode_answer(Range /*range*/, std::vector<std::byte>& out) {
  append(sum_, out);
}

void HalfCells::decode_answer(Range range, int owner, std::span<const std::byte> bytes) {
  read(range, owner, bytes, part(cells_, range));
}

void HalfCells::read(Range range, int rank, std::span<const std::byte> bytes,
                     std::span<float> into) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_frame, fmt::format("rank {} sent invalid cells: {}", rank, why));
  };
  if (bytes.size() != bytes_of(range)) {
    refuse(fmt::format("{} bytes for {} cells, which must have {}", bytes.size(), range.size(),
                       bytes_of(range)));
  }
  const auto scale = load_value<float>(bytes, 0);
  int exponent = 0;
  if (std::frexp(scale, &exponent) != 0.5f || std::abs(exponent - 1) > kMaxExponent) {
    refuse(fmt::format("their scale must be a power of two from 2^-{} to 2^{} and is {}",
                       kMaxExponent, kMaxExponent, scale));
  }
  kernels::from_half({reinterpret_cast<const Half*>(&bytes[sizeof(float)]), range.size()},
                     1 / scale, into);
  const std::size_t bad = kernels::first_nonfinite(into);
  if (bad < into.size()) {
    throw Error::overflow(
        fmt::format("rank {} sent invalid cells: cell {} is {}; a gradient overflowed", rank,
                    range.begin + bad, into[bad]));
  }
}

}  // namespace thinreduce

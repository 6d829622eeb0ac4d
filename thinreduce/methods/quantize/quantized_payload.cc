#include "thinreduce/methods/quantize/quantized_payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr std::size_t kPiece = kernels::kCodesPerPack;
// Elements per entropy table: enough that the size of the table does not matter, few enough for the
// L2 cache.
constexpr std::size_t kRun = 160 * kPiece;
using Length = std::uint32_t;

// Calls work(first, count) for consecutive pieces of at most `piece` elements.
template <typename Work>
void for_pieces(std::size_t first, std::size_t count, std::size_t piece, Work&& work) {
  for (std::size_t at = 0; at < count; at += piece) {
    work(first + at, std::min(piece, count - at));
  }
}

}  // namespace

QuantizedPayload::QuantizedPayload(const QuantizedFormat& format)
    : format_(format),
      packing_(kernels::Packing::of(format.symbols)),
      coder_(std::max(2u, format.symbols)) {
  resize(format.elements, format.blocks);
}

void QuantizedPayload::resize(std::size_t elements, std::size_t blocks) {
  format_.elements = elements;
  format_.blocks = blocks;
  if (format_.entropy) symbols_.resize(std::max(symbols_.size(), std::min(kRun, elements)));
}

std::size_t QuantizedPayload::limit(std::size_t elements, std::size_t blocks) const {
  const std::size_t runs = (elements + kRun - 1) / kRun;
  return blocks * sizeof(float) + runs * sizeof(Length) + packing_.bytes(elements);
}

void QuantizedPayload::write_packed(std::size_t first, std::size_t count, const MakeCodes& make,
                                    std::vector<std::byte>& out) {
  std::size_t at = out.size();
  out.resize(at + packing_.bytes(count));
  for_pieces(first, count, kPiece, [&](std::size_t from, std::size_t piece) {
    make(from, std::span(codes_).first(piece));
    const std::size_t padded = kernels::whole_rows(piece);
    std::fill(codes_.begin() + static_cast<std::ptrdiff_t>(piece),
              codes_.begin() + static_cast<std::ptrdiff_t>(padded), 0u);
    const std::size_t bytes = packing_.bytes(piece);
    kernels::pack(std::span(codes_).first(padded), packing_, std::span(out).subspan(at, bytes));
    at += bytes;
  });
}

void QuantizedPayload::write(std::span<const float> scales, const MakeCodes& make,
                             std::vector<std::byte>& out) {
  const std::size_t start = out.size();
  out.resize(start + scales.size_bytes());
  for_pieces(0, format_.elements, kRun, [&](std::size_t first, std::size_t count) {
    const std::size_t length_at = out.size();
    out.resize(length_at + sizeof(Length));
    if (!format_.entropy) {
      write_packed(first, count, make, out);
      return;
    }
    for_pieces(first, count, kPiece, [&](std::size_t from, std::size_t piece) {
      make(from, std::span(codes_).first(piece));
      for (std::size_t i = 0; i < piece; ++i) {
        symbols_[from - first + i] = static_cast<std::uint8_t>(codes_[i]);
      }
    });
    if (coder_.encode(std::span(symbols_).first(count), packing_.bytes(count), out)) {
      const std::size_t length = out.size() - length_at - sizeof(Length);
      store_value(std::span(out), length_at, static_cast<Length>(length));
      return;
    }
    const MakeCodes again = [&](std::size_t from, std::span<std::uint32_t> codes) {
      std::copy_n(symbols_.begin() + static_cast<std::ptrdiff_t>(from - first), codes.size(),
                  codes.begin());
    };
    write_packed(first, count, again, out);
  });
  if (!scales.empty()) std::memcpy(&out[start], scales.data(), scales.size_bytes());
}

void QuantizedPayload::read_packed(std::span<const std::byte> bytes, std::size_t first,
                                   std::size_t count, std::string_view what,
                                   const OnCodes& on_codes) {
  for_pieces(first, count, kPiece, [&](std::size_t from, std::size_t piece) {
    const std::size_t length = packing_.bytes(piece);
    const auto largest = kernels::unpack(bytes.first(length), packing_,
                                         std::span(codes_).first(kernels::whole_rows(piece)));
    bytes = bytes.subspan(length);
    if (largest >= format_.symbols) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("{}: a code of {} among elements {} to {}, where the maximum is {}",
                              what, largest, from, from + piece - 1, format_.symbols - 1));
    }
    on_codes(from, std::span(codes_).first(piece));
  });
}

void QuantizedPayload::read(std::span<const std::byte> payload, std::string_view what,
                            std::span<float> scales, const OnCodes& on_codes) {
  ByteReader reader(payload, what);
  const auto scale_bytes = reader.take(scales.size_bytes());
  for (std::size_t block = 0; block < scales.size(); ++block) {
    scales[block] = load_value<float>(scale_bytes, block * sizeof(float));
    check_scale(scales[block], block, what);
  }
  for_pieces(0, format_.elements, kRun, [&](std::size_t first, std::size_t count) {
    const std::size_t length = reader.value<Length>();
    if (length == 0) {
      read_packed(reader.take(packing_.bytes(count)), first, count, what, on_codes);
      return;
    }
    const auto bytes = reader.take(length);
    if (symbols_.size() < count) symbols_.resize(count);
    coder_.decode(bytes, what, std::span(symbols_).first(count));
    for_pieces(first, count, kPiece, [&](std::size_t from, std::size_t piece) {
      std::copy_n(symbols_.begin() + static_cast<std::ptrdiff_t>(from - first), piece,
                  codes_.begin());
      on_codes(from, std::span(codes_).first(piece));
    });
  });
  reader.finish();
}

void check_scale(float scale, std::size_t block, std::string_view what) {
  if (!std::isfinite(scale)) {
    throw Error::overflow(
        fmt::format("{}: a scale of {} for block {}; the rank's gradient plus residual overflowed",
                    what, scale, block));
  }
  if (std::signbit(scale)) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{}: a scale of {} for block {}, which must not be negative", what,
                            scale, block));
  }
}

}  // namespace thinreduce

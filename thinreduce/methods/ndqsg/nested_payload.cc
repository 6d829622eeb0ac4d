#include "thinreduce/methods/ndqsg/nested_payload.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/error.h"
#include "thinreduce/methods/quantize/quantized_payload.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

// u32 number of failures, f32 alpha, u32 bytes of the nested codes, u32 bytes of plain codes.
constexpr std::size_t kHeadBytes = 16;

// Codes of part of the elements, without scales: those stand before both parts.
QuantizedPayload codes_payload(std::size_t elements, std::uint32_t symbols, bool entropy) {
  return QuantizedPayload({elements, 0, symbols, entropy});
}

void write_codes(const std::vector<std::uint8_t>& codes, std::uint32_t symbols, bool entropy,
                 std::vector<std::byte>& out) {
  codes_payload(codes.size(), symbols, entropy)
      .write(
          {},
          [&](std::size_t first, std::span<std::uint32_t> part) {
            std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(first), part.size(),
                        part.begin());
          },
          out);
}

struct CodesToRead {
  std::uint32_t symbols = 3;
  bool entropy = true;
  std::string what;
};
void read_codes(std::span<const std::byte> bytes, const CodesToRead& reading,
                std::vector<std::uint8_t>& codes) {
  codes_payload(codes.size(), reading.symbols, reading.entropy)
      .read(bytes, reading.what, {}, [&](std::size_t first, std::span<const std::uint32_t> part) {
        std::transform(part.begin(), part.end(), codes.begin() + static_cast<std::ptrdiff_t>(first),
                       [](std::uint32_t code) { return static_cast<std::uint8_t>(code); });
      });
}

}  // namespace

NestedPayload::NestedPayload(const Shape& payload_shape)
    : scales(payload_shape.quantizer.blocks()), shape_(payload_shape) {
  clear();
}

void NestedPayload::clear() {
  flags_.assign((runs() + 7) / 8, std::byte{0});
  nested_.clear();
  plain_.clear();
  plain_counts_.assign(shape_.quantizer.symbols(), 0);
  failures = 0;
  run_ = nested_at_ = plain_at_ = 0;
}

void NestedPayload::append(std::span<const std::uint32_t> codes, bool plain) {
  if (plain) flags_[run_ / 8] |= std::byte{1} << run_ % 8;
  ++run_;
  auto& to = plain ? plain_ : nested_;
  for (const std::uint32_t code : codes) to.push_back(static_cast<std::uint8_t>(code));
}

void NestedPayload::count_plain(std::span<const std::uint32_t> codes) {
  for (const std::uint32_t code : codes) ++plain_counts_[code];
}

// Returns the bytes of a payload of plain codes, with the entropy of their frequencies.
std::size_t NestedPayload::expected_plain_bytes() const {
  const BlockQuantizer& quantizer = shape_.quantizer;
  const auto limit =
      QuantizedPayload({quantizer.elements(), quantizer.blocks(), quantizer.symbols(), false})
          .limit();
  if (!shape_.entropy) return limit;
  double bits = 0;
  for (const std::uint64_t count : plain_counts_) {
    const auto times = static_cast<double>(count);
    if (count > 0) bits += times * std::log2(static_cast<double>(quantizer.elements()) / times);
  }
  return std::min(limit, scales.size() * sizeof(float) + static_cast<std::size_t>(bits / 8));
}

bool NestedPayload::next(std::span<std::uint32_t> codes) {
  const bool plain = (flags_[run_ / 8] >> run_ % 8 & std::byte{1}) != std::byte{0};
  ++run_;
  const auto& from = plain ? plain_ : nested_;
  std::size_t& at = plain ? plain_at_ : nested_at_;
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), codes.size(), codes.begin());
  at += codes.size();
  return plain;
}

double NestedPayload::nested_fraction() const {
  return static_cast<double>(nested_.size()) / static_cast<double>(shape_.quantizer.elements());
}

std::size_t NestedPayload::plain_elements() const {
  std::size_t elements = 0;
  for_runs(0, shape_.quantizer.elements(), [&](std::size_t run, std::size_t, std::size_t count) {
    if ((flags_[run / 8] >> run % 8 & std::byte{1}) != std::byte{0}) elements += count;
  });
  return elements;
}

std::size_t NestedPayload::limit() const {
  const BlockQuantizer& quantizer = shape_.quantizer;
  return kHeadBytes + flags_.size() + scales.size() * sizeof(float) +
         codes_payload(quantizer.elements(), shape_.ratio, false).limit() +
         codes_payload(quantizer.elements(), quantizer.symbols(), false).limit();
}

void NestedPayload::write(std::vector<std::byte>& out) {
  const std::size_t floats = scales.size() * sizeof(float);
  out.resize(kHeadBytes + flags_.size() + floats);
  store_value(std::span(out), 0, failures);
  store_value(std::span(out), 4, alpha);
  store_value(std::span(out), 12, static_cast<std::uint32_t>(expected_plain_bytes()));
  std::copy(flags_.begin(), flags_.end(), out.begin() + kHeadBytes);
  const auto scale_bytes = std::as_bytes(std::span(scales));
  std::copy(scale_bytes.begin(), scale_bytes.end(),
            out.begin() + static_cast<std::ptrdiff_t>(kHeadBytes + flags_.size()));
  const std::size_t before = out.size();
  write_codes(nested_, shape_.ratio, shape_.entropy, out);
  store_value(std::span(out), 8, static_cast<std::uint32_t>(out.size() - before));
  write_codes(plain_, shape_.quantizer.symbols(), shape_.entropy, out);
}

void NestedPayload::read(std::span<const std::byte> payload, const std::string& what) {
  const auto require = [&](bool holds, const auto& expected) {
    if (!holds) throw Error(ErrorCode::bad_frame, fmt::format("{}: {}", what, expected()));
  };
  clear();
  ByteReader reader(payload, what);
  failures = reader.value<std::uint32_t>();
  alpha = reader.value<float>();
  const auto nested_bytes = reader.value<std::uint32_t>();
  plain_bytes = reader.value<std::uint32_t>();
  const std::size_t elements = shape_.quantizer.elements();
  require(failures <= elements, [&] {
    return fmt::format("the count of wrongly decoded elements is {} and must be at most {}",
                       failures, elements);
  });
  require(alpha >= 0.5F && alpha <= 1.0F,
          [&] { return fmt::format("alpha is {} and must be between 0.5 and 1", alpha); });
  const auto flags = reader.take(flags_.size());
  std::copy(flags.begin(), flags.end(), flags_.begin());
  for (std::size_t run = runs(); run < flags_.size() * 8; ++run) {
    require((flags_[run / 8] >> run % 8 & std::byte{1}) == std::byte{0}, [&] {
      return fmt::format("the flag of run {} is set, but there are only {} runs", run, runs());
    });
  }
  const auto scale_bytes = reader.take(scales.size() * sizeof(float));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    scales[block] = load_value<float>(scale_bytes, block * sizeof(float));
    check_scale(scales[block], block, what);
  }
  plain_.resize(plain_elements());
  nested_.resize(elements - plain_.size());
  const auto nested_codes = reader.take(nested_bytes);
  read_codes(nested_codes, {shape_.ratio, shape_.entropy, what}, nested_);
  read_codes(reader.take(reader.left()), {shape_.quantizer.symbols(), shape_.entropy, what},
             plain_);
}

}  // namespace thinreduce

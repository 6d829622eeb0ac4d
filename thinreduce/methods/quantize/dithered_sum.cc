#include "thinreduce/methods/quantize/dithered_sum.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

constexpr std::size_t kUnitElements = kernels::kCodesPerPack;
// Units that a thread takes at a time, about 40,000 elements.
constexpr std::size_t kUnitsPerBlock = 16;

}  // namespace

DitheredSum::DitheredSum(const DitheredSumSetup& setup, DitheredSumBuffers& buffers)
    : setup_(setup), buffers_(buffers) {
  for (int summed = 1; summed <= world(); ++summed) {
    packings_.push_back(kernels::Packing::of(
        2 * static_cast<std::uint32_t>(summed) * setup.quantizer.levels_per_side + 1));
  }
  buffers_.own.resize(packings_.front().bytes(units() * kUnitElements));
  if (world() > 1) buffers_.sums.resize(packings_.back().bytes(units() * kUnitElements));
}

std::size_t DitheredSum::units() const {
  return (setup_.quantizer.elements() + kUnitElements - 1) / kUnitElements;
}

std::size_t DitheredSum::unit_bytes() const {
  return packings_.back().bytes(kUnitElements);
}

std::size_t DitheredSum::elements_before(std::size_t unit) const {
  return std::min(unit * kUnitElements, setup_.quantizer.elements());
}

std::size_t DitheredSum::packed_bytes(Range range, int summed) const {
  return packings_[static_cast<std::size_t>(summed - 1)].bytes(elements_before(range.end) -
                                                               elements_before(range.begin));
}

std::span<std::byte> DitheredSum::wire(Range range, int summed) {
  if (range.size() == 0) return {};
  if (summed == 1) {
    return std::span(buffers_.own)
        .subspan(packings_.front().bytes(kUnitElements) * range.begin, packed_bytes(range, 1));
  }
  // At the same offset for any number of ranks in the sum.
  return std::span(buffers_.sums).subspan(unit_bytes() * range.begin, packed_bytes(range, summed));
}

Range DitheredSum::bytes_of_unit(Range range, std::size_t unit, int summed) const {
  return {packed_bytes({range.begin, unit}, summed), packed_bytes({range.begin, unit + 1}, summed)};
}

std::size_t DitheredSum::unpack_unit(const Packed& packed, Range range, std::size_t unit,
                                     Codes& codes) const {
  const std::size_t count = elements_before(unit + 1) - elements_before(unit);
  const Range part = bytes_of_unit(range, unit, packed.summed);
  const auto largest = kernels::unpack(packed.bytes.subspan(part.begin, part.size()),
                                       packings_[static_cast<std::size_t>(packed.summed - 1)],
                                       std::span(codes).first(kernels::whole_rows(count)));
  check(largest, packed);
  return count;
}

void DitheredSum::check(std::uint32_t largest_code, const Packed& packed) const {
  const auto max_code =
      2 * static_cast<std::uint32_t>(packed.summed) * setup_.quantizer.levels_per_side;
  if (largest_code > max_code) {
    throw Error(
        ErrorCode::bad_frame,
        fmt::format(
            "rank {} got a code of {} from rank {}, where the maximum of sums over {} ranks "
            "is {}",
            setup_.rank, largest_code, packed.peer, packed.summed, max_code));
  }
}

template <typename Work>
void DitheredSum::for_units(Range range, const Work& work) const {
  setup_.workers.for_runs(range.size(), kUnitsPerBlock,
                          [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
                            for (std::size_t i = 0; i < count; ++i) work(range.begin + first + i);
                          });
}

void DitheredSum::encode(Range range) {
  if (setup_.original != nullptr) {
    setup_.original->keep({elements_before(range.begin), elements_before(range.end)});
  }
  for_units(range, [&](std::size_t unit) { encode_unit(range, unit); });
}

void DitheredSum::encode_unit(Range range, std::size_t unit) {
  const std::size_t first = elements_before(unit);
  const std::size_t count = elements_before(unit + 1) - first;
  const auto values = setup_.source.subspan(first, count);
  if (setup_.measure) {
    setup_.quantizer.measure_from(setup_.source, first, count, setup_.clip, setup_.scales);
  }
  Codes codes;
  setup_.quantizer.quantize(values, first, setup_.scales,
                            setup_.keys[static_cast<std::size_t>(setup_.rank)],
                            std::span(codes).first(count));
  const auto padded = std::span(codes).first(kernels::whole_rows(count));
  std::ranges::fill(padded.subspan(count), 0u);
  pack_unit(padded, range, unit, 1);
}

void DitheredSum::pack_unit(std::span<const std::uint32_t> codes, Range range, std::size_t unit,
                            int summed) {
  const Range part = bytes_of_unit(range, unit, summed);
  kernels::pack(codes, packings_[static_cast<std::size_t>(summed - 1)],
                wire(range, summed).subspan(part.begin, part.size()));
}

void DitheredSum::add(Range range, int summed, std::span<const std::byte> incoming, int peer) {
  for_units(range, [&](std::size_t unit) {
    Codes codes;
    Codes more;
    const std::size_t count = unpack_unit({wire(range, 1), 1, setup_.rank}, range, unit, codes);
    const std::size_t padded = kernels::whole_rows(count);
    (void)unpack_unit({incoming, summed, peer}, range, unit, more);
    kernels::add_codes(std::span(codes).first(padded), std::span(more).first(padded));
    pack_unit(std::span(codes).first(padded), range, unit, summed + 1);
  });
}

// The sums are packed once, when they are complete.
void DitheredSum::add_part(Range range, int summed, std::span<const std::byte> part, int peer) {
  part_sums_.resize(range.size() * kUnitElements);
  for_units(range, [&](std::size_t unit) {
    const auto all = std::span(part_sums_).subspan((unit - range.begin) * kUnitElements);
    Codes codes;
    if (summed == 1) {
      const std::size_t own = unpack_unit({wire(range, 1), 1, setup_.rank}, range, unit, codes);
      std::ranges::copy(std::span(codes).first(kernels::whole_rows(own)), all.begin());
    }
    const std::size_t padded =
        kernels::whole_rows(unpack_unit({part, 1, peer}, range, unit, codes));
    const auto sums = all.first(padded);
    kernels::add_codes(sums, std::span(codes).first(padded));
    if (summed + 1 == world()) pack_unit(sums, range, unit, world());
  });
}

void DitheredSum::decode(Range range, int peer) {
  const Packed sum{wire(range, world()), world(), peer};
  for_units(range, [&](std::size_t unit) {
    const std::size_t first = elements_before(unit);
    Codes codes;
    const std::size_t count = unpack_unit(sum, range, unit, codes);
    setup_.quantizer.dequantize(std::span(codes).first(count), first, setup_.scales,
                                {.keys = setup_.keys,
                                 .ranks = static_cast<std::uint32_t>(world()),
                                 .factor = 1.0f / static_cast<float>(world())},
                                setup_.mean.subspan(first, count));
  });
}

void DitheredSum::subtract_own(std::span<float> values) {
  const auto rank = static_cast<std::size_t>(setup_.rank);
  for_units({0, units()}, [&](std::size_t unit) {
    Codes codes;
    std::array<float, kUnitElements> sent;
    const std::size_t first = elements_before(unit);
    const std::size_t count =
        unpack_unit({wire({unit, unit + 1}, 1), 1, setup_.rank}, {unit, unit + 1}, unit, codes);
    setup_.quantizer.dequantize(std::span(codes).first(count), first, setup_.scales,
                                {.keys = setup_.keys.subspan(rank, 1)},
                                std::span(sent).first(count));
    for (std::size_t i = 0; i < count; ++i) values[first + i] -= sent[i];
  });
}

}  // namespace thinreduce

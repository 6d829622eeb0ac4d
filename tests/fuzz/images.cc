// Data sets: IDX and PNG images, labels and text.
#include <zlib.h>

#include <algorithm>

#include "apps/train/dataset.h"
#include "tests/fuzz/fuzz.h"

namespace thinreduce::fuzz {
namespace {

using train::Images;

void check(const Images& images) {
  expect(images.pixels.size() == images.count * images.channels * images.side * images.side,
         "every image has its pixels");
  expect(std::ranges::all_of(images.labels, [](std::uint8_t label) { return label <= 9; }),
         "labels are 0 to 9");
}

void put_big_endian(Bytes& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<std::byte>(value >> shift));
}
std::uint32_t big_endian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8U | static_cast<std::uint32_t>(bytes[i]);
  return value;
}
std::uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

// Puts the checksums of a PNG's chunks right.
void fix_png(Bytes& png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::size_t length = big_endian(std::span(png).subspan(at, 4));
    if (length > png.size() - at - 12) return;
    Bytes crc;
    put_big_endian(crc, crc_of(std::span(png).subspan(at + 4, length + 4)));
    std::copy(crc.begin(), crc.end(), png.begin() + static_cast<std::ptrdiff_t>(at + 8 + length));
    at += 12 + length;
  }
}

void put_chunk(Bytes& png, std::string_view type, std::span<const std::byte> data) {
  put_big_endian(png, static_cast<std::uint32_t>(data.size()));
  put_text(png, type);
  put_bytes(png, data);
  put_big_endian(png, 0);
}

// Returns a PNG of `rows` images; colour type 2 is RGB, 3 has a palette, 0 is grey.
Bytes make_png(std::uint32_t rows, std::uint8_t depth, std::uint8_t colour) {
  Bytes png = text_seed("\x89PNG\r\n\x1a\n");
  Bytes header;
  put_big_endian(header, 1024);
  put_big_endian(header, rows);
  for (const std::uint8_t value :
       {depth, colour, std::uint8_t{0}, std::uint8_t{0}, std::uint8_t{0}}) {
    put(header, value);
  }
  put_chunk(png, "IHDR", header);
  if (colour == 3) put_chunk(png, "PLTE", Bytes(6));
  const std::size_t channels = colour == 2 ? 3 : 1;
  const Bytes pixels(rows * (1 + 1024 * channels * depth / 8));
  uLongf length = ::compressBound(pixels.size());
  Bytes packed(length);
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &length,
             reinterpret_cast<const Bytef*>(pixels.data()), pixels.size());
  packed.resize(length);
  put_chunk(png, "IDAT", packed);
  put_chunk(png, "IEND", {});
  fix_png(png);
  return png;
}

}  // namespace

void run(Input input) {
  const auto kind = input.value<std::uint8_t>() % 4;
  accepts([&] {
    if (kind == 0) {
      const auto length = input.value<std::uint16_t>();
      const Bytes images = copy(input.take(length));
      check(train::decode_idx(images, copy(input.rest()), "fuzzed"));
    } else if (kind == 1) {
      Bytes png = copy(input.rest());
      fix_png(png);
      Images images;
      train::append_png(png, "fuzzed", images);
      check(images);
    } else if (kind == 2) {
      for (const auto label : train::decode_labels(copy(input.rest()), "fuzzed")) {
        expect(label <= 9, "labels are 0 to 9");
      }
    } else {
      const train::Text text = train::decode_text(copy(input.rest()), "fuzzed");
      const auto known = [&](std::uint8_t number) { return number < text.alphabet; };
      expect(std::ranges::all_of(text.train, known) && std::ranges::all_of(text.test, known),
             "characters are of the alphabet");
    }
  });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  Bytes idx{std::byte{0}};
  put(idx, std::uint16_t{16 + 2 * 9});
  for (const std::uint32_t value : {0x803U, 2U, 3U, 3U}) put_big_endian(idx, value);
  idx.resize(idx.size() + 18, std::byte{7});
  for (const std::uint32_t value : {0x801U, 2U}) put_big_endian(idx, value);
  idx.resize(idx.size() + 2, std::byte{9});
  all.push_back(idx);
  const auto add = [&](std::uint8_t kind, const Bytes& body) {
    Bytes seed{static_cast<std::byte>(kind)};
    put_bytes(seed, body);
    all.push_back(seed);
  };
  add(1, make_png(2, 8, 2));
  add(1, make_png(1, 16, 2));
  add(1, make_png(3, 1, 3));
  add(1, make_png(1, 8, 0));
  Bytes claims = make_png(1, 8, 2);
  claims[21] = std::byte{1};  // 65537 rows, in a file that has one
  fix_png(claims);
  add(1, claims);
  add(2, text_seed("[0,1,2,9]"));
  add(2, text_seed("[0,1,\"a\",-1,1e3]"));
  add(3, text_seed("To be, or not to be: that is the question – \xF0\x9F\x98\x80"));
  return all;
}

}  // namespace thinreduce::fuzz

// Decodes images, labels and text from untrusted bytes.
#include <fmt/format.h>
#include <png.h>

#include <map>
#include <string_view>

#include "apps/json_text.h"
#include "apps/train/dataset.h"
#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::bad_input, fmt::format("{}: {}", what, why));
}

std::uint32_t big_endian(const Bytes& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value = value << 8U | static_cast<std::uint32_t>(bytes[at + i]);
  return value;
}

// Checks the header of an IDX file of unsigned bytes and returns the file's dimensions.
std::vector<std::size_t> idx_dimensions(const Bytes& bytes, std::size_t dimensions,
                                        const std::string& what) {
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header)
    refuse(what, fmt::format("has {} bytes, fewer than its header of {}", bytes.size(), header));
  const auto magic = static_cast<std::uint32_t>(0x800 + dimensions);  // 8: unsigned bytes
  if (big_endian(bytes, 0) != magic) {
    refuse(what,
           fmt::format("starts with {:#x}, but an IDX file of {} dimensions starts with {:#x}",
                       big_endian(bytes, 0), dimensions, magic));
  }
  std::vector<std::size_t> extents;
  std::size_t expected = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    extents.push_back(big_endian(bytes, 4 + 4 * i));
    // Stops multiplying beyond the file's size, so the product can't overflow.
    if (extents.back() > bytes.size() || expected > bytes.size())
      expected = bytes.size() + 1;
    else
      expected *= extents.back();
  }
  if (bytes.size() - header != expected) {
    refuse(what, fmt::format("has {} bytes of values, but its header says {}",
                             bytes.size() - header, expected));
  }
  return extents;
}

void check_labels(const std::vector<std::uint8_t>& labels, const std::string& what) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] > 9) refuse(what, fmt::format("label {} is {}, must be 0 to 9", i, labels[i]));
  }
}

const std::uint8_t* as_bytes(const Bytes& bytes, std::size_t offset) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data()) + offset;
}

// Reads the code point at `at` and moves `at` past it; 0x110000 if it is not valid UTF-8.
std::uint32_t next_code_point(const Bytes& utf8, std::size_t& at) {
  constexpr std::uint32_t kInvalid = 0x110000;
  const auto first = static_cast<std::uint32_t>(utf8[at++]);
  if (first < 0x80) return first;
  const std::size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4 || utf8.size() - at < more) return kInvalid;
  std::uint32_t point = first & (0x3FU >> more);
  for (std::size_t i = 0; i < more; ++i) {
    const auto next = static_cast<std::uint32_t>(utf8[at++]);
    if ((next & 0xC0U) != 0x80U) return kInvalid;
    point = point << 6U | (next & 0x3FU);
  }
  return point;
}

}  // namespace

Images decode_idx(const Bytes& images, const Bytes& labels, const std::string& what) {
  const auto extents = idx_dimensions(images, 3, what + " images");
  const auto label_dimensions = idx_dimensions(labels, 1, what + " labels");
  if (extents[0] != label_dimensions[0]) {
    refuse(what, fmt::format("has {} images, but {} labels", extents[0], label_dimensions[0]));
  }
  if (extents[1] != extents[2]) {
    refuse(what, fmt::format("has images of {} x {} pixels, which must be square", extents[1],
                             extents[2]));
  }
  Images result{.count = extents[0], .channels = 1, .side = extents[1], .pixels = {}, .labels = {}};
  result.pixels.assign(as_bytes(images, 16), as_bytes(images, images.size()));
  result.labels.assign(as_bytes(labels, 8), as_bytes(labels, labels.size()));
  check_labels(result.labels, what + " labels");
  return result;
}

void append_png(const Bytes& png, const std::string& what, Images& images) {
  constexpr std::size_t kPixels = std::size_t{32} * 32;
  constexpr std::size_t kMaxRows = 100'000;
  png_image decoder{};
  decoder.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&decoder, png.data(), png.size()) == 0) {
    refuse(what, fmt::format("is not a PNG file: {}", decoder.message));
  }
  if (decoder.width != kPixels || decoder.height > kMaxRows) {
    png_image_free(&decoder);
    refuse(what, fmt::format("has {} x {} pixels, expected rows of {} pixels, one image each",
                             decoder.width, decoder.height, kPixels));
  }
  // Deflate makes at most 1032 bytes of one, so a small file can't make us allocate much.
  constexpr std::size_t kMaxInflation = 1032;
  const std::size_t rows = decoder.height;
  if (decoder.format != PNG_FORMAT_RGB || rows * kPixels * 3 > png.size() * kMaxInflation) {
    png_image_free(&decoder);
    refuse(what,
           fmt::format("claims {} rows in {} bytes, expected a whole PNG file with 8 bits each "
                       "of red, green and blue",
                       rows, png.size()));
  }
  std::vector<std::uint8_t> interleaved(rows * kPixels * 3);
  if (png_image_finish_read(&decoder, nullptr, interleaved.data(), 0, nullptr) == 0) {
    const std::string reason = decoder.message;
    png_image_free(&decoder);
    refuse(what, fmt::format("is a damaged PNG file: {}", reason));
  }
  images.channels = 3;
  images.side = 32;
  images.count += rows;
  images.pixels.reserve(images.pixels.size() + interleaved.size());
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint8_t* image = interleaved.data() + row * kPixels * 3;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t i = 0; i < kPixels; ++i) images.pixels.push_back(image[i * 3 + channel]);
    }
  }
}

std::vector<std::uint8_t> decode_labels(const Bytes& json, const std::string& what) {
  const auto list = apps::parse_json_or_discard(
      std::string_view(reinterpret_cast<const char*>(json.data()), json.size()));
  if (!list.is_array()) refuse(what, "is not a JSON array");
  std::vector<std::uint8_t> labels;
  labels.reserve(list.size());
  for (const auto& item : list) {
    if (!item.is_number_integer() || item < 0 || item > 9) {
      refuse(what, fmt::format("label {} is {}, must be 0 to 9", labels.size(), item.dump()));
    }
    labels.push_back(item.get<std::uint8_t>());
  }
  return labels;
}

Text decode_text(const Bytes& utf8, const std::string& what) {
  std::vector<std::uint32_t> points;
  for (std::size_t at = 0; at < utf8.size();) {
    const std::size_t start = at;
    points.push_back(next_code_point(utf8, at));
    if (points.back() > 0x10FFFF) refuse(what, fmt::format("byte {} is not UTF-8", start));
  }
  std::map<std::uint32_t, std::uint8_t> numbers;
  for (const std::uint32_t point : points) numbers[point] = 0;
  if (numbers.empty() || numbers.size() > 256) {
    refuse(what, fmt::format("has {} different characters, must be 1 to 256", numbers.size()));
  }
  std::uint8_t next = 0;
  for (auto& [point, number] : numbers) number = next++;
  Text text{.alphabet = numbers.size(), .train = {}, .test = {}};
  const std::size_t training = points.size() - points.size() / 10;
  for (std::size_t i = 0; i < points.size(); ++i) {
    (i < training ? text.train : text.test).push_back(numbers.at(points[i]));
  }
  return text;
}

}  // namespace thinreduce::train

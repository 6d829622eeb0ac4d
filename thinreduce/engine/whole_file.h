// Files that are written and read as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace thinreduce {

// Replaces the file atomically: writes FILE.partial, flushes it to disk and renames it, so a crash
// or a full disk keeps the previous file. Throws Error{unavailable} naming the file and the reason.
void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes);

// Throws Error{unavailable} naming the file and the reason.
[[nodiscard]] std::vector<std::byte> read_file(const std::filesystem::path& file);

}  // namespace thinreduce

// Files as the program writes and reads them: whole or not at all, and errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinreduce::apps {

// Writes beside the file and renames. Throws Error{unavailable} naming the file and the reason.
void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& file, std::string_view text);

// Throws Error{unavailable} when the file can't be read.
[[nodiscard]] std::vector<std::byte> read_file(const std::filesystem::path& file);
[[nodiscard]] std::string read_text(const std::filesystem::path& file);

// Creates the folder and makes sure that `bytes` more fit into it, by taking that space for a
// moment. Throws Error{unavailable} that says what to do.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

}  // namespace thinreduce::apps

// Files of the program: those of engine/whole_file.h as text, and a check for free space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "thinreduce/engine/whole_file.h"

namespace thinreduce::apps {

void write_text(const std::filesystem::path& file, std::string_view text);
// Throws Error{unavailable} when standard output is closed or full.
void write_standard_output(std::string_view text);
[[nodiscard]] std::string read_text(const std::filesystem::path& file);

// Returns the sentence of a JSON error without the prefix "[json.exception.parse_error.101] ".
[[nodiscard]] std::string plain_text(const nlohmann::json::exception& error);

// Creates the folder and checks that `bytes` more fit into it by reserving that space for a moment.
// Throws Error{unavailable} that says what to do.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

}  // namespace thinreduce::apps

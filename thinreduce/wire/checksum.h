// XXH3 with 64 bits: checksums of frames and state files, fingerprints of specs and results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thinreduce {

[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t checksum(std::string_view text);

}  // namespace thinreduce

// XXH3 with 64 bits: checksums of frames, messages and state files, fingerprints of specs and
// results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thinreduce {

[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t checksum(std::string_view text);
// Differs with the seed, so that bytes are right only in their place. Seed 0 gives checksum(bytes).
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace thinreduce

// XXH3 of 64 bits, on the widest instructions of this CPU. The value is the same on all of them.
//
// xxHash is compiled here, because as a library it may have been built for SSE2 only, which takes
// 1.5 times as long as AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinreduce {

[[nodiscard]] std::uint64_t xxh3(const void* bytes, std::size_t size, std::uint64_t seed);

// For CPUs with AVX2 only. The file has functions of this name where it is compiled for x86-64.
[[nodiscard]] std::uint64_t xxh3_avx2(const void* bytes, std::size_t size, std::uint64_t seed);

}  // namespace thinreduce

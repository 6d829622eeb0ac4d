// Proofs that a rank knows the secret: keyed hashes (BLAKE2b) of a purpose, numbers and nonces.
// Each side contributes a fresh nonce, and the purposes of the two sides differ, so a proof can be
// neither replayed nor sent back to its maker.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "thinreduce/transport/authenticate.h"

namespace thinreduce {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;

// Returns kNonceBytes random bytes.
[[nodiscard]] std::string new_nonce();

// Returns kProofBytes bytes that only a holder of the secret can compute.
[[nodiscard]] std::string prove(const Secret& secret, std::string_view purpose,
                                std::initializer_list<std::uint32_t> numbers,
                                std::initializer_list<std::string_view> texts);

// Compares in a time that does not depend on the bytes.
[[nodiscard]] bool same_proof(std::string_view a, std::string_view b);

}  // namespace thinreduce

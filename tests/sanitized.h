// Whether this build has a sanitizer, which makes a program many times slower. It sees the memory
// that a law's code touches, or its races, in few trials.
#pragma once

namespace thinreduce {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace thinreduce

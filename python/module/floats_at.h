// The memory of an array or tensor that Python passes as address and length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::python {

inline std::span<float> floats_at(std::uintptr_t address, std::size_t count) {
  return {reinterpret_cast<float*>(address), count};  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace thinreduce::python

// A rank's gradient while the mean is written over it: if the exchange fails, the caller gets the
// gradient back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"

namespace thinreduce {

// Memory that serves one Original after another.
struct OriginalMemory {
  struct Kept {
    Range range;
    std::size_t at = 0;  // in `floats`
  };

  std::unique_ptr<float[]> floats{};
  std::size_t size = 0;      // elements of `floats`
  std::vector<Kept> kept{};  // in the order in which the ranges were kept
};

class Original {
 public:
  Original(std::span<float> values, OriginalMemory& memory) : values_(values), memory_(memory) {
    memory_.kept.clear();
  }

  // Keeps the values of a range; must be called before they are overwritten. Elements may be kept
  // more than once: the first copy counts.
  void keep(Range range) {
    const auto from = part(values_, range);
    if (from.empty()) return;
    std::size_t at = aligned(from.data());
    if (at + from.size() > memory_.size) {
      grow(at + from.size());
      at = aligned(from.data());
    }
    memory_.kept.push_back({range, at});
    std::ranges::copy(from, &memory_.floats[at]);
    used_ = at + from.size();
  }
  void keep_all() { keep({0, values_.size()}); }

  // Puts back everything that was kept.
  void restore() {
    for (auto one = memory_.kept.rbegin(); one != memory_.kept.rend(); ++one) {
      std::copy_n(&memory_.floats[one->at], one->range.size(), part(values_, one->range).begin());
    }
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kLineFloats = kLine / sizeof(float);

  // Returns the next place that is as far from the start of a cache line as `from`: some CPUs copy
  // such memory ten times as fast.
  [[nodiscard]] std::size_t aligned(const float* from) const {
    const auto place = [](const float* memory) {
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
      return reinterpret_cast<std::uintptr_t>(memory) % kLine / sizeof(float);
    };
    const std::size_t next = place(memory_.floats.get()) + used_ % kLineFloats;
    return used_ + (place(from) + 2 * kLineFloats - next) % kLineFloats;
  }

  // Makes room for at least `least` floats.
  void grow(std::size_t least) {
    const std::size_t size = std::max(2 * memory_.size, values_.size() + least + kLine);
    auto floats = std::make_unique_for_overwrite<float[]>(size);
    std::copy_n(memory_.floats.get(), used_, floats.get());
    memory_.floats = std::move(floats);
    memory_.size = size;
  }

  std::span<float> values_;
  OriginalMemory& memory_;
  std::size_t used_ = 0;  // floats
};

}  // namespace thinreduce

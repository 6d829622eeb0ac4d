// A rank's gradient while the mean is written over it: if the exchange fails, the caller gets the
// gradient back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"

namespace thinreduce {

// Memory that serves one Original after another.
struct OriginalMemory {
  std::vector<float> values;      // of the ranges, one after another
  std::vector<UnitRange> ranges;  // in the order in which they were kept
};

class Original {
 public:
  Original(std::span<float> values, OriginalMemory& memory) : values_(values), memory_(memory) {
    memory_.values.clear();
    memory_.ranges.clear();
  }

  // Keeps the values of a range; must be called before they are overwritten. Elements may be kept
  // more than once: the first copy counts.
  void keep(UnitRange range) {
    const auto from = part(values_, range);
    if (memory_.values.empty()) memory_.values.reserve(values_.size());
    memory_.values.insert(memory_.values.end(), from.begin(), from.end());
    memory_.ranges.push_back(range);
  }
  void keep_all() { keep({0, values_.size()}); }

  // Puts back everything that was kept.
  void restore() {
    std::size_t end = memory_.values.size();
    for (auto range = memory_.ranges.rbegin(); range != memory_.ranges.rend(); ++range) {
      end -= range->size();
      std::copy_n(memory_.values.begin() + static_cast<std::ptrdiff_t>(end), range->size(),
                  part(values_, *range).begin());
    }
  }

 private:
  std::span<float> values_;
  OriginalMemory& memory_;
};

}  // namespace thinreduce

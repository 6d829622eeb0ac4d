// Top-k within chunks: each rank sends the elements of largest magnitude of every chunk of the
// bucket. Values travel as floats or in 2 bits, and the residual may decay. These are the options
// of SparseLoCo (arXiv 2508.15706) for the differences of local steps.
#pragma once

#include <cstddef>
#include <memory>

#include "thinreduce/method/method.h"

namespace thinreduce {

struct TopKChunkOptions {
  double density = 0.01;
  std::size_t chunk = 4096;  // elements
  bool two_bits = false;     // per value, instead of a float
  bool feedback = true;
  float decay = 1;  // factor of the residual before a step's gradient is added
};

[[nodiscard]] std::unique_ptr<Method> make_topk_chunks(std::size_t elements,
                                                       const TopKChunkOptions& options);

}  // namespace thinreduce

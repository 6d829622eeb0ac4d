// The layers of ResNet-50 as a bucket. Benchmarks need real shapes: a method that factors matrices
// sends far less for one square matrix than for the layers of a network.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce::apps {

// Returns ResNet-50's 161 tensors, last layer first as backward delivers them, with all widths
// scaled so that they have `floats` elements; the classifier has as many rows as are left. Throws
// Error{bad_input} for fewer than 4096 elements, which the narrowest network has.
[[nodiscard]] BucketLayout resnet_layout(std::size_t floats);

// Returns the default of `--shapes`. A small network has few tensors that are large enough to be
// compressed, so the default is "none" below a million floats.
[[nodiscard]] std::string default_shapes(std::size_t floats);
// Returns the bucket of a benchmark with `--shapes`: "resnet50", or "none".
[[nodiscard]] BucketLayout bench_layout(const std::string& shapes, std::size_t floats);
// Returns the shapes in words.
[[nodiscard]] std::string describe_shapes(const std::string& shapes);
// Returns what a benchmark's reader must know about the specs on synthetic gradients; "" if
// nothing.
[[nodiscard]] std::string notes_on_synthetic(const std::vector<std::string>& specs);

}  // namespace thinreduce::apps

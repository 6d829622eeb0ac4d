// A gather in which some ranks send plain codes and the others nested ones.
//
// The exchange has two stages. First the plain ranks send their payloads, whose mean y every rank
// computes. Then the nested ranks, which know y and their own values, encode: they decode each run
// as the others will, and send it in plain codes where nested ones would fail.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/quantize/block_quantizer.h"

namespace thinreduce {

struct NestedGatherOptions {
  BlockQuantizer quantizer;
  std::uint32_t ratio = 3;
  std::optional<double> alpha;  // none: measured in every step
  double failures = 0;          // tolerated fraction of wrong elements in a run
  int first_group = 1;  // number of ranks that send plain codes; the others send nested ones
  bool entropy = true;
  bool feedback = false;
  std::uint64_t seed = 0;
};

[[nodiscard]] std::unique_ptr<Method> make_nested_gather(const NestedGatherOptions& options);

}  // namespace thinreduce

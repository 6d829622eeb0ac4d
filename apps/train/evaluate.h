// The loss and the accuracy of a network on test samples.
#pragma once

#include <cstddef>

#include "apps/train/feed.h"
#include "apps/train/models.h"
#include "apps/train/replica.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::train {

struct EvaluationSettings {
  std::size_t samples = 0;         // at most as many as there are
  bool is_language_model = false;  // which has no accuracy
  Seconds timeout{60};
};

// Splits the samples among the ranks; every rank gets the result. All ranks must have the same
// parameters and buffers.
[[nodiscard]] Evaluation evaluate(Network& network, const Feed& feed, Transport& transport,
                                  const EvaluationSettings& settings);

}  // namespace thinreduce::train

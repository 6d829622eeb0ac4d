// A small GPT that predicts characters.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/models.h"

namespace thinreduce::train {

struct GptOptions {
  std::int64_t alphabet = 0;
  std::int64_t context = 0;  // characters per window
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 4;
};

// The network takes windows of characters (batch, context) and returns the scores of the character
// after each one (batch, context, alphabet).
[[nodiscard]] std::shared_ptr<Network> make_gpt(const GptOptions& options);

}  // namespace thinreduce::train

#include "apps/train/text_batches.h"

#include <algorithm>

#include "apps/train/random.h"

namespace thinreduce::train {
namespace {

void copy_window(std::span<const std::uint8_t> text, std::size_t start,
                 std::span<std::int64_t> inputs, std::span<std::int64_t> targets) {
  std::ranges::copy(text.subspan(start, inputs.size()), inputs.begin());
  std::ranges::copy(text.subspan(start + 1, targets.size()), targets.begin());
}

}  // namespace

std::size_t count_windows(std::size_t characters, std::size_t context) {
  // The last window starts at most at windows * context - 1, and its last target must exist.
  return characters < context ? 0 : (characters - context) / context;
}

TextBatches::TextBatches(const Dataset& data, const OrderOptions& options, std::size_t context)
    : text_(data.text),
      seed_(options.seed),
      context_(context),
      order_(options, count_windows(data.text.train.size(), context), data.name) {}

std::size_t TextBatches::test_samples() const {
  return count_windows(text_.test.size(), context_);
}

void TextBatches::training(std::uint64_t step, std::span<std::int64_t> inputs,
                           std::span<std::int64_t> targets) {
  const RandomKey key{seed_, Draw::offset, order_.epoch_of(step)};
  const std::size_t offset = random_below(key, 0, static_cast<std::uint32_t>(context_));
  std::size_t at = 0;
  for (const std::uint32_t window : order_.indices(step)) {
    copy_window(text_.train, offset + window * context_, inputs.subspan(at, context_),
                targets.subspan(at, context_));
    at += context_;
  }
}

void TextBatches::test(std::size_t first, std::span<std::int64_t> inputs,
                       std::span<std::int64_t> targets) const {
  for (std::size_t at = 0; at < inputs.size(); at += context_, ++first) {
    copy_window(text_.test, first * context_, inputs.subspan(at, context_),
                targets.subspan(at, context_));
  }
}

}  // namespace thinreduce::train

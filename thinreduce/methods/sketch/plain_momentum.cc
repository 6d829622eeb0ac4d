#include "thinreduce/methods/sketch/plain_momentum.h"

#include <fmt/format.h>

#include "thinreduce/error.h"
#include "thinreduce/method/bucket.h"

namespace thinreduce {

void PlainMomentum::apply(std::span<float> means) {
  if (momentum_ == 0) return;
  if (velocity_.size() == layout_.elements && means.size() < velocity_.size()) end_warmup();
  velocity_.resize(means.size());
  for (std::size_t i = 0; i < means.size(); ++i) {
    velocity_[i] = momentum_ * velocity_[i] + means[i];
    means[i] = velocity_[i];
  }
}

void PlainMomentum::end_warmup() {
  std::size_t kept = 0;
  for_uncompressed(layout_, [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) velocity_[kept++] = velocity_[i];
  });
  velocity_.resize(kept);
}

void PlainMomentum::state(Archive& archive) {
  if (momentum_ == 0) return;
  const bool all = layout_.elements == 0;
  archive.replicated("velocity", velocity_,
                     all ? Archive::Length::per_element_or_none : Archive::Length::any);
  const std::size_t size = velocity_.size();
  if (!all && size != 0 && size != outside() && size != layout_.elements) {
    throw Error(ErrorCode::bad_state,
                fmt::format("the saved 'velocity' has {} values, must have {} or {}; load the "
                            "state of the same model and buckets",
                            size, outside(), layout_.elements));
  }
  if (archive.loading()) reserve();
}

std::size_t PlainMomentum::outside() const {
  std::size_t outside = 0;
  for_uncompressed(layout_, [&](std::size_t, std::size_t count) { outside += count; });
  return outside;
}

void PlainMomentum::reserve() {
  if (momentum_ != 0) velocity_.reserve(outside());
}

}  // namespace thinreduce

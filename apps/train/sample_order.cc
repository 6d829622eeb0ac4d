#include "apps/train/sample_order.h"

#include <fmt/format.h>

#include <numeric>

#include "apps/train/random.h"
#include "thinreduce/error.h"

namespace thinreduce::train {

std::size_t steps_per_epoch(const OrderOptions& options, std::size_t samples,
                            const std::string& data) {
  const std::size_t per_step = options.batch * static_cast<std::size_t>(options.ranks);
  if (samples < per_step) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("{} ranks with batches of {} need {} samples per step, but {} has only {} "
                    "samples; use a smaller --batch or fewer --ranks",
                    options.ranks, options.batch, per_step, data, samples));
  }
  return samples / per_step;
}

SampleOrder::SampleOrder(const OrderOptions& options, std::size_t samples, const std::string& data)
    : options_(options), samples_(samples) {
  (void)train::steps_per_epoch(options, samples, data);
}

std::size_t SampleOrder::steps_per_epoch() const {
  return samples_ / (options_.batch * static_cast<std::size_t>(options_.ranks));
}

std::uint64_t SampleOrder::epoch_of(std::uint64_t step) const {
  return step / steps_per_epoch();
}

void SampleOrder::shuffle(std::uint64_t epoch) {
  if (!order_.empty() && epoch == epoch_) return;
  epoch_ = epoch;
  order_.resize(samples_);
  std::iota(order_.begin(), order_.end(), 0U);
  const RandomKey key{options_.seed, Draw::order, epoch};
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random_below(key, i, static_cast<std::uint32_t>(i))]);
  }
}

std::span<const std::uint32_t> SampleOrder::indices(std::uint64_t step) {
  const std::uint64_t epoch = epoch_of(step);
  shuffle(epoch);
  const std::size_t in_epoch = step - epoch * steps_per_epoch();
  const std::size_t part =
      in_epoch * static_cast<std::size_t>(options_.ranks) + static_cast<std::size_t>(options_.rank);
  return std::span<const std::uint32_t>(order_).subspan(part * options_.batch, options_.batch);
}

}  // namespace thinreduce::train

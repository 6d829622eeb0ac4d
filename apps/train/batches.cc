#include "apps/train/batches.h"

#include "apps/train/random.h"

namespace thinreduce::train {

Batches::Batches(const Dataset& data, const BatchOptions& options)
    : data_(data), options_(options), order_(options.order, data.train.count, data.name) {
  if (options_.side == 0) options_.side = data.train.side;
}

std::size_t Batches::pixels() const {
  return data_.train.channels * options_.side * options_.side;
}

std::span<const std::uint32_t> Batches::indices(std::uint64_t step) {
  return order_.indices(step);
}

Batches::Place Batches::place(std::uint64_t epoch, std::uint32_t image) const {
  const std::size_t room = data_.train.side + 2 * options_.padding - options_.side;
  if (!options_.augment) return {room / 2, room / 2, false};
  const RandomKey crop{options_.order.seed, Draw::crop, epoch};
  const RandomKey flip{options_.order.seed, Draw::flip, epoch};
  const auto choices = static_cast<std::uint32_t>(room + 1);
  const std::uint64_t drawn = random_below(crop, image, choices * choices);
  return {drawn / choices, drawn % choices, random_below(flip, image, 2) == 1};
}

// Pixels outside the image are 0.
void Batches::draw(const Images& source, std::size_t image, Place place,
                   std::span<float> out) const {
  const std::size_t side = options_.side;
  const std::size_t plane = source.side * source.side;
  for (std::size_t c = 0; c < source.channels; ++c) {
    const std::uint8_t* pixels = source.pixels.data() + (image * source.channels + c) * plane;
    const float scale = 1.0F / (255.0F * data_.deviation[c]);
    const float shift = data_.mean[c] / data_.deviation[c];
    float* target = out.data() + c * side * side;
    for (std::size_t y = 0; y < side; ++y) {
      const std::size_t row = y + place.top - options_.padding;  // wraps when above the image
      for (std::size_t x = 0; x < side; ++x) {
        const std::size_t from = place.flip ? side - 1 - x : x;
        const std::size_t column = from + place.left - options_.padding;
        const bool inside = row < source.side && column < source.side;
        const float value = inside ? static_cast<float>(pixels[row * source.side + column]) : 0.0F;
        target[y * side + x] = value * scale - shift;
      }
    }
  }
}

void Batches::training(std::uint64_t step, std::span<float> images,
                       std::span<std::int64_t> labels) {
  const auto chosen = indices(step);
  const std::uint64_t epoch = order_.epoch_of(step);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    draw(data_.train, chosen[i], place(epoch, chosen[i]), images.subspan(i * pixels(), pixels()));
    labels[i] = data_.train.labels[chosen[i]];
  }
}

void Batches::test(std::size_t first, std::span<float> images,
                   std::span<std::int64_t> labels) const {
  const std::size_t middle = (data_.test.side + 2 * options_.padding - options_.side) / 2;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    draw(data_.test, first + i, {middle, middle, false}, images.subspan(i * pixels(), pixels()));
    labels[i] = data_.test.labels[first + i];
  }
}

}  // namespace thinreduce::train

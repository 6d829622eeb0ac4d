// Chooses the images of each rank and step (sample_order.h), and prepares them for the network.
// Crops and flips depend on the image and the epoch alone, not on the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/dataset.h"
#include "apps/train/sample_order.h"

namespace thinreduce::train {

struct BatchOptions {
  OrderOptions order;
  std::size_t side = 0;     // height and width of the network's input, a crop of the image
  std::size_t padding = 0;  // width of the zero border added before a random crop
  bool augment = false;     // random crops and flips; otherwise the centre crop
};

class Batches {
 public:
  // `data` must outlive this.
  Batches(const Dataset& data, const BatchOptions& options);

  [[nodiscard]] std::size_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  [[nodiscard]] std::size_t test_samples() const { return data_.test.count; }
  [[nodiscard]] std::size_t pixels() const;  // values per network input

  // Returns this rank's images of a step; steps count from 0 over all epochs.
  [[nodiscard]] std::span<const std::uint32_t> indices(std::uint64_t step);
  // Writes the same images and their labels. `images` must hold batch * pixels() values.
  void training(std::uint64_t step, std::span<float> images, std::span<std::int64_t> labels);
  // Writes test images from `first` on, one per label.
  void test(std::size_t first, std::span<float> images, std::span<std::int64_t> labels) const;

 private:
  struct Place {
    std::size_t top = 0;
    std::size_t left = 0;
    bool flip = false;
  };
  [[nodiscard]] Place place(std::uint64_t epoch, std::uint32_t image) const;
  void draw(const Images& source, std::size_t image, Place place, std::span<float> out) const;

  const Dataset& data_;
  BatchOptions options_;
  SampleOrder order_;
};

}  // namespace thinreduce::train

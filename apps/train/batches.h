// Which images a rank sees in a step, and how they look to the network.
//
// An epoch is one shuffled order of all images, the same for every world size. Step s takes the
// next ranks * batch of them; rank r gets the r-th part. So N ranks with batches of B see what one
// rank sees with batches of N*B. What does not fill a last whole step is left out. Crops and flips
// are drawn by image and epoch, whoever computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/dataset.h"

namespace thinreduce::train {

struct BatchOptions {
  std::uint64_t seed = 0;
  std::size_t batch = 32;  // a rank
  int rank = 0;
  int ranks = 1;
  std::size_t side = 0;     // what the network takes: a part of the image
  std::size_t padding = 0;  // zeros around the image before a random crop
  bool augment = false;     // random crop and flip; otherwise the middle
};

class Batches {
 public:
  // `data` must stay.
  Batches(const Dataset& data, const BatchOptions& options);

  [[nodiscard]] std::size_t steps_per_epoch() const;
  [[nodiscard]] std::size_t pixels() const;  // of one image as the network takes it

  // This rank's images of a step, counted from 0 over all epochs.
  [[nodiscard]] std::span<const std::uint32_t> indices(std::uint64_t step);
  // The same as network input and labels; `images` holds batch * pixels() values.
  void training(std::uint64_t step, std::span<float> images, std::span<std::int64_t> labels);
  // Test images from `first` on, as many as there are labels.
  void test(std::size_t first, std::span<float> images, std::span<std::int64_t> labels) const;

 private:
  struct Place {
    std::size_t top = 0;
    std::size_t left = 0;
    bool flip = false;
  };
  void shuffle(std::uint64_t epoch);
  [[nodiscard]] Place place(std::uint64_t epoch, std::uint32_t image) const;
  void draw(const Images& source, std::size_t image, Place place, std::span<float> out) const;

  const Dataset& data_;
  BatchOptions options_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> order_;  // of epoch_; empty at first
};

}  // namespace thinreduce::train

// Chooses the images of each rank and step, and prepares them for the network.
//
// An epoch is one shuffled order of all images, the same for every world size. Each step takes the
// next ranks * batch images, of which rank r gets the r-th part, so that N ranks with batches of B
// see the images that one rank sees with batches of N*B. Images that do not fill a whole step are
// left out. Crops and flips depend on the image and the epoch alone, not on the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/dataset.h"

namespace thinreduce::train {

struct BatchOptions {
  std::uint64_t seed = 0;
  std::size_t batch = 32;  // images per rank
  int rank = 0;
  int ranks = 1;
  std::size_t side = 0;     // height and width of the network's input, a crop of the image
  std::size_t padding = 0;  // width of the zero border added before a random crop
  bool augment = false;     // random crops and flips; otherwise the centre crop
};

class Batches {
 public:
  // `data` must outlive this.
  Batches(const Dataset& data, const BatchOptions& options);

  [[nodiscard]] std::size_t steps_per_epoch() const;
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
  void shuffle(std::uint64_t epoch);
  [[nodiscard]] Place place(std::uint64_t epoch, std::uint32_t image) const;
  void draw(const Images& source, std::size_t image, Place place, std::span<float> out) const;

  const Dataset& data_;
  BatchOptions options_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> order_;  // of epoch_; empty before the first step
};

}  // namespace thinreduce::train

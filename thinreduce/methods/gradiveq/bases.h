// Where GradiVeQ's bases come from: samples of the layers' slices, the choice of the order and the
// rank, and the exchange that gives all ranks the same bits.
//
// Each layer has an owner, the rank whose number is the layer's modulo the world. Only the owner
// keeps statistics and looks for eigenvectors; the others get the basis from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"
#include "thinreduce/methods/gradiveq/layer.h"

namespace thinreduce {

// The tensors of a bucket that a method compresses, cut in all the ways that are to be tried.
[[nodiscard]] std::vector<GradiveqLayer> cut_layers(const GradiveqSettings& settings,
                                                    const BucketLayout& layout);

// What projecting loses of one slice, and its energy.
struct SliceLoss {
  float lost = 0;
  float total = 0;
};

class GradiveqBases {
 public:
  // `layers` must stay in place.
  GradiveqBases(const GradiveqSettings& settings, const MethodSetup& setup,
                std::span<GradiveqLayer> layers);

  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] bool can_compress(std::size_t layer) const;
  [[nodiscard]] std::uint64_t renewed_at(std::size_t layer) const {
    return books_[layer].renewed_at;
  }

  // Samples of an uncompressed step, one of `steps`; `rate` is what the mean will move by.
  struct Collect {
    std::span<const float> sums;
    std::span<const float> mean;
    float rate = 0;
    std::uint64_t steps = 1;
    SampleKey key;
  };
  void collect(std::size_t layer, const Collect& what);

  // A sampled slice of a compressed step; moves the mean as well.
  struct MeanUpdate {
    std::span<float> mean;
    float rate = 0;
  };
  void learn(std::size_t layer, std::size_t slice, std::span<const float> sum,
             const MeanUpdate& update);
  // The samples learned since the last call enter the statistics.
  void flush_samples(std::size_t layer);
  // The sum of a slice over the ranks, from its mean.
  [[nodiscard]] std::span<const float> sum_from_mean(const GradiveqLayer& layer, std::size_t slice,
                                                     std::span<const float> values, int world);

  // What projecting one of this rank's own slices loses.
  [[nodiscard]] SliceLoss measure(const GradiveqLayer& layer, std::size_t slice,
                                  std::span<const float> values, std::span<const float> mean,
                                  float share);

  // New bases for some layers, from their owners. Throws Error{bad_frame} naming the owner.
  void renew(const std::vector<std::size_t>& which, std::uint64_t step, Exchange& exchange);

  // Of everything that must be the same on all ranks.
  [[nodiscard]] std::uint64_t fingerprint() const;
  void state(Archive& archive);

 private:
  // Of one way to cut a layer. While there are several, every other step tests what the rest fits.
  struct Evidence {
    SliceStatistics fit;
    SliceStatistics test;
  };
  struct Book {
    std::vector<Evidence> evidence;  // of the candidates; empty except at the owner
    // Sums over samples of <sum, mean> and <mean, mean>: how well the mean predicts.
    double agreement = 0;
    double strength = 0;
    std::uint64_t renewed_at = 0;
    std::vector<float> pending;  // samples not yet in the statistics
  };
  struct Proposal {
    std::size_t candidate = 0;
    std::size_t rank = 0;
    float mean_share = 0;
    std::vector<float> columns;
  };

  [[nodiscard]] int owner(std::size_t layer) const {
    return Archive::owner_of(layer, world_);
  }
  [[nodiscard]] bool owns(std::size_t layer) const { return owner(layer) == rank_; }
  [[nodiscard]] std::size_t rank_of(const Slicing& slicing, const Spectrum& spectrum) const;
  [[nodiscard]] std::size_t best_candidate(std::size_t layer) const;
  [[nodiscard]] Proposal propose(std::size_t layer);
  void note_mean(Book& book, std::span<const float> sum, std::span<const float> mean);
  void accept(std::size_t layer, const Proposal& proposal);
  void share(std::size_t layer, Proposal& proposal, Exchange& exchange) const;

  GradiveqSettings settings_;
  int rank_;
  int world_;
  std::span<GradiveqLayer> layers_;
  std::vector<Book> books_;
  std::vector<std::size_t> drawn_;
  std::vector<float> slice_, slice_mean_, projected_;
};

}  // namespace thinreduce

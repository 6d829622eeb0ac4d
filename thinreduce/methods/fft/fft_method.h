// The parts of the fft method that do not depend on the collective: residual, theta, statistics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/fft/blocks.h"
#include "thinreduce/methods/fft/options.h"
#include "thinreduce/methods/fft/residual.h"
#include "thinreduce/methods/fft/selected_pairs.h"
#include "thinreduce/methods/fft/spectrum_piece.h"

namespace thinreduce {

class FftMethod : public Method {
 public:
  FftMethod(const MethodSetup& setup, const FftOptions& options);

  void reduce(const Bucket& bucket, Exchange& exchange) final;
  void add_residual(std::span<float> values) final;
  void state(Archive& archive) final;
  [[nodiscard]] std::uint64_t fingerprint() const final;

 protected:
  // Reduces the bucket and returns the fraction of the energy that was kept, the same on all ranks.
  virtual double reduce_spectrum(const Bucket& bucket, Exchange& exchange, double theta) = 0;

  [[nodiscard]] const FftOptions& options() const { return options_; }
  [[nodiscard]] FftBlocks& blocks() { return blocks_; }
  [[nodiscard]] const FftBlocks& blocks() const { return blocks_; }
  [[nodiscard]] SelectedPairs& selected() { return selected_; }
  [[nodiscard]] FftResidual& residual() { return residual_; }

  [[nodiscard]] std::size_t group_floats() const { return blocks_.group_floats(); }
  [[nodiscard]] std::size_t group_words() const {
    return group_floats() / (2 * kernels::kPairsPerWord);
  }
  [[nodiscard]] PayloadShape shape_of(Groups groups) const {
    return {groups.size() * group_words(), options_.bits};
  }
  // Groups per run that are worked on together: whole strips of a payload, in the nearest cache.
  [[nodiscard]] std::size_t run_groups() const {
    return std::max<std::size_t>(1, kStripFloats / group_floats());
  }
  template <typename Visit>
  void for_runs(Groups groups, Visit&& visit) {
    for (std::size_t begin = groups.begin; begin < groups.end; begin += run_groups()) {
      visit(Groups{begin, std::min(begin + run_groups(), groups.end)});
    }
  }
  // Returns the number of pairs in some groups, without the blocks of zeros that fill them up.
  [[nodiscard]] double pairs_of(Groups groups) const;
  // Selects the fraction `keep` of the pairs of gradient plus residual outside some groups.
  void select(std::span<const float> gradient, double keep, Groups skip, Workers workers);
  // Transforms the sum of all ranks' spectra of a run back and overwrites its elements by the mean.
  void write_mean(Groups run, std::span<const float> spectrum, int world, std::span<float> values,
                  std::size_t thread = 0);

 private:
  FftOptions options_;
  std::size_t elements_;
  FftBlocks blocks_;
  SelectedPairs selected_;
  FftResidual residual_;
};

}  // namespace thinreduce

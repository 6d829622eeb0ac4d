// The residual of the fft method, which is kept as a spectrum.
//
// A step takes the gradient in group by group: its spectrum is added to the residual's, in place.
// Sent pairs leave the residual only when the next step comes by (or the state is saved), so a
// step passes over the residual once, and a step whose exchange fails has nothing to put back.
//
// The spectrum of a huge gradient may overflow. Then, and for all groups whose mean has not been
// written yet when an exchange fails, the gradient itself is kept for the next step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/kernels/aligned.h"
#include "thinreduce/methods/fft/blocks.h"
#include "thinreduce/methods/fft/selected_pairs.h"

namespace thinreduce {

class Archive;

class FftResidual {
 public:
  // Without feedback nothing is kept. `sent` must have the options of the selections that settle()
  // gets.
  FftResidual(FftBlocks& blocks, const SelectedPairs& sent, std::size_t elements, bool feedback);

  void set_threads(std::size_t threads);

  // Returns the spectrum of a group of gradient plus residual, valid until the thread asks for
  // another, and takes the gradient in. Threads may do so for different groups at a time.
  [[nodiscard]] std::span<const float> take_in(std::size_t group, std::span<const float> gradient,
                                               std::size_t thread);
  // Says that the mean overwrites the gradient of some groups, which were taken in before.
  void delivered(Groups groups);
  // Ends a step: the selected pairs of all groups but the replaced ones leave the residual.
  void settle(SelectedPairs& selected);
  // Lets the floats of replacement() be the residual of some groups after each settle(). They may
  // be changed once a group was taken in.
  void replace(Groups groups);
  [[nodiscard]] std::span<float> replacement(Groups groups);
  // Ends a step that has failed, perhaps because memory ran out: this needs none. `gradient` must
  // be unchanged where nothing was delivered.
  void keep_all(std::span<const float> gradient);

  void add_to(std::span<float> values);
  void state(Archive& archive);

 private:
  // How far a group is: the last step's pairs are still in it; they are not; this step's gradient
  // is in it, too; this step's mean was written.
  enum class Group : std::uint8_t { owing, settled, taken, delivered };

  [[nodiscard]] std::span<float> spectrum(std::size_t group);
  // Takes out of a group what the last step has sent.
  void settle_group(std::size_t group, std::size_t thread = 0);
  void settle_all();
  // Makes room for the gradient of a step that fails.
  void reserve();

  FftBlocks& blocks_;
  std::size_t elements_;
  bool feedback_;
  std::vector<float> spectrum_;  // of all groups
  // Gradient that is not in the spectrum; empty if none. There is always room for all of it, which
  // is only address space until it is used.
  std::vector<float> unseen_;
  std::vector<Group> groups_;
  SelectedPairs sent_;  // by the last step
  Groups replaced_;
  kernels::AlignedFloats replacement_;
  std::vector<kernels::AlignedFloats> rooms_;  // spectrum of one group, by thread
};

}  // namespace thinreduce

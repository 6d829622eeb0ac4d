// Chooses the text of each rank and step: windows of consecutive characters.
//
// An epoch cuts the training text into windows without gaps, from an offset that depends on the
// epoch, and shuffles them (sample_order.h). A window's targets are the characters that follow its
// inputs, one further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/dataset.h"
#include "apps/train/sample_order.h"

namespace thinreduce::train {

// Returns the number of windows of `context` characters in a text, with any offset below `context`.
[[nodiscard]] std::size_t count_windows(std::size_t characters, std::size_t context);

class TextBatches {
 public:
  // `data` must outlive this.
  TextBatches(const Dataset& data, const OrderOptions& options, std::size_t context);

  [[nodiscard]] std::size_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  [[nodiscard]] std::size_t test_samples() const;

  // Writes this rank's windows of a step. Both spans must hold batch * context values.
  void training(std::uint64_t step, std::span<std::int64_t> inputs,
                std::span<std::int64_t> targets);
  // Writes windows of the test text from number `first` on, as many as the spans hold.
  void test(std::size_t first, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

 private:
  const Text& text_;
  std::uint64_t seed_;
  std::size_t context_;
  SampleOrder order_;
};

}  // namespace thinreduce::train

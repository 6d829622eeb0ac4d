// The outer step of local-step training: moves the anchor, the parameters that all ranks share, by
// the mean of the changes that the ranks' local steps made.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace thinreduce {

struct OuterStep {
  enum class Kind { sgd, nesterov };

  Kind kind = Kind::nesterov;
  float lr = 0.7F;
  float momentum = 0.9F;

  // Reads "nesterov,lr=0.7,momentum=0.9" or "sgd,lr=1"; settings that are left out are these (for
  // sgd: lr 1, momentum 0). Throws Error{bad_input}.
  [[nodiscard]] static OuterStep parse(std::string_view text);
  // Returns the text with every setting spelled out.
  [[nodiscard]] std::string to_string() const;

  // With `mean` the mean over the ranks of (anchor - parameters):
  //   velocity = momentum * velocity + mean
  //   anchor -= lr * velocity                       (sgd)
  //   anchor -= lr * (mean + momentum * velocity)   (nesterov)
  // Every operation is rounded to float by itself, so all CPUs get the same bits. `velocity` may be
  // empty without momentum.
  void apply(std::span<float> anchor, std::span<float> velocity, std::span<const float> mean) const;
};

}  // namespace thinreduce

// How GradiVeQ strings the elements of a tensor together and cuts the string into slices.
//
// Which elements are neighbours decides how well a slice can be predicted from few numbers. Of a
// convolution's weights (filter, depth, height, width), as PyTorch stores them, the orders are
//   paper    height, width, depth, filter  (the last is fastest)
//   channel  filter, height, width, depth
//   row      as stored
// A matrix (out, in) is a convolution of 1x1: `channel` and `row` are the same then.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce {

class Slicing {
 public:
  // One run of `elements` floats from `offset` on, of unknown shape.
  static Slicing of_run(std::size_t offset, std::size_t elements);
  // `order` is paper, channel or row. Tensors of less than two dimensions are runs.
  static Slicing of_tensor(const Tensor& tensor, const std::string& order);

  // Cuts slices of `slice` floats; what is left over fills none. None if `slice` is 0 or too long.
  void cut(std::size_t slice);
  // A slice of whole rows of the fastest dimensions, or of a divisor of one, with at most
  // min(256, sqrt(8 * elements)) floats: then the basis at ratio 8 is no larger than the tensor.
  // So many floats where that would make short slices, and for one run of memory.
  [[nodiscard]] std::size_t natural_slice() const;

  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] std::size_t slice() const { return slice_; }
  [[nodiscard]] std::size_t slices() const { return slice_ == 0 ? 0 : elements_ / slice_; }
  // Places from here on fill no slice.
  [[nodiscard]] std::size_t sliced() const { return slices() * slice_; }

  // The string is the memory itself, so that span() may be used instead of copies.
  [[nodiscard]] bool contiguous() const { return axes_.size() == 1 && axes_[0].stride == 1; }
  template <typename T>
  [[nodiscard]] std::span<T> span(std::span<T> bucket, std::size_t place, std::size_t count) const {
    return bucket.subspan(offset_ + place, count);
  }
  // Copies the elements at places [place, place + out.size()) of the string.
  void gather(std::span<const float> bucket, std::size_t place, std::span<float> out) const;
  void scatter(std::span<const float> in, std::size_t place, std::span<float> bucket) const;

  // Same elements in the same order.
  [[nodiscard]] bool same_order(const Slicing& other) const {
    return offset_ == other.offset_ && axes_ == other.axes_;
  }

 private:
  struct Axis {
    std::size_t extent = 0;
    std::size_t stride = 0;
    bool operator==(const Axis&) const = default;
  };
  // Elements of a string next to each other, `count` of them `stride` apart in the bucket, and of
  // the same for `rows` steps of `row_stride`: a transposed matrix, mostly.
  struct Block {
    std::size_t element = 0;  // the first, in the bucket
    std::size_t count = 0, stride = 0;
    std::size_t rows = 1, row_stride = 0;
  };
  // Calls visit(block) for all parts of a run of the string, in order.
  template <typename Visit>
  void for_blocks(std::size_t place, std::size_t count, Visit visit) const;

  std::size_t offset_ = 0;
  std::size_t elements_ = 0;
  std::size_t slice_ = 0;
  std::vector<Axis> axes_;  // fastest first; at least one
};

}  // namespace thinreduce

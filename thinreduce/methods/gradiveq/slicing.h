// The order in which GradiVeQ takes the elements of a tensor, and the cut of that sequence into
// slices.
//
// The order decides how well few numbers describe a slice. PyTorch stores a convolution's weights
// as (filter, depth, height, width); the orders are, with the fastest dimension last,
//   paper    height, width, depth, filter
//   channel  filter, height, width, depth
//   row      as stored
// A matrix (out, in) is a 1x1 convolution: its `channel` and `row` orders are the same.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/method/layout.h"

namespace thinreduce {

// Returns the first `size` floats of a buffer, which grows if it is shorter.
[[nodiscard]] inline std::span<float> room(std::vector<float>& buffer, std::size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return std::span(buffer).first(size);
}

class Slicing {
 public:
  // `order` is paper, channel or row; tensors of fewer than two dimensions are taken as stored.
  static Slicing of_tensor(const Tensor& tensor, const std::string& order);

  // Cuts slices of `slice` floats; the elements after the last full slice are in none. There are no
  // slices if `slice` is 0 or longer than the tensor.
  void cut(std::size_t slice) { slice_ = slice <= elements_ ? slice : 0; }
  // Returns a length of whole rows of the fastest dimensions, or of a divisor of one, of at most
  // M = min(256, sqrt(8 * elements)) floats: the basis at ratio 8 is then no larger than the
  // tensor. Returns M where that would make short slices, and for a single run of memory.
  [[nodiscard]] std::size_t natural_slice() const;

  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] std::size_t slice() const { return slice_; }
  [[nodiscard]] std::size_t slices() const { return slice_ == 0 ? 0 : elements_ / slice_; }
  // Returns the number of elements that are in slices, and the places of one slice.
  [[nodiscard]] std::size_t sliced() const { return slices() * slice_; }
  [[nodiscard]] Range places_of(std::size_t slice) const {
    return {slice * slice_, (slice + 1) * slice_};
  }

  // Copies the elements at the places [place, place + size) of the sequence out of the bucket, and
  // back into it.
  void gather(std::span<const float> bucket, std::size_t place, std::span<float> out) const;
  void scatter(std::span<const float> in, std::size_t place, std::span<float> bucket) const;

  // Returns whether the sequence is the memory itself.
  [[nodiscard]] bool contiguous() const { return axes_.size() == 1 && axes_[0].stride == 1; }
  // Returns the elements at `places` of a contiguous() sequence.
  template <typename Float>
  [[nodiscard]] std::span<Float> memory(std::span<Float> bucket, Range places) const {
    return bucket.subspan(offset_ + places.begin, places.size());
  }
  // Returns the elements at `places`: the memory itself, or a copy in `scratch`. scatter() writes
  // either back.
  template <typename Float>
  [[nodiscard]] std::span<Float> view(std::span<Float> bucket, Range places,
                                      std::vector<float>& scratch) const {
    if (contiguous()) return memory(bucket, places);
    const auto out = room(scratch, places.size());
    gather(bucket, places.begin, out);
    return out;
  }

  bool operator==(const Slicing&) const = default;

 private:
  struct Axis {
    std::size_t extent = 0;
    std::size_t stride = 0;
    bool operator==(const Axis&) const = default;
  };
  // Calls copy(first element in the bucket, first place after `place`, count) for strips of the
  // sequence, whose elements are axes_[0].stride apart in the bucket.
  template <typename Copy>
  void for_strips(std::size_t place, std::size_t count, Copy copy) const;

  std::size_t offset_ = 0;
  std::size_t elements_ = 0;
  std::size_t slice_ = 0;
  std::vector<Axis> axes_;  // fastest first; at least one
};

}  // namespace thinreduce

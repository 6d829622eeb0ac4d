#include "thinreduce/methods/gradiveq/slicing.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

// Long enough for the correlation between neighbours, short enough that a basis of an eighth of it
// stays in the first-level cache.
constexpr std::size_t kLongestNaturalSlice = 256;
// Columns of a transposed block per strip: the floats of a cache line. The lines on the strided
// side, one per column, stay in the cache for all rows.
constexpr std::size_t kStripColumns = 16;

std::size_t largest_divisor(std::size_t number, std::size_t max) {
  std::size_t divisor = std::min(number, max);
  while (divisor > 1 && number % divisor != 0) --divisor;
  return std::max<std::size_t>(1, divisor);
}

inline void copy_strip(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                       std::size_t count) {
  if (from_stride == 1 && to_stride == 1) {
    std::copy_n(from, count, to);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
}

}  // namespace

Slicing Slicing::of_tensor(const Tensor& tensor, const std::string& order) {
  Slicing slicing;
  slicing.offset_ = tensor.offset;
  slicing.elements_ = tensor.elements();
  slicing.axes_ = {{slicing.elements_, 1}};
  if (tensor.shape.size() < 2 || slicing.elements_ == 0) return slicing;
  const auto filters = static_cast<std::size_t>(tensor.shape[0]);
  const auto depth = static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t area = slicing.elements_ / filters / depth;
  const Axis filter{filters, depth * area};
  const Axis channel{depth, area};
  const Axis position{area, 1};
  ensure(order == "paper" || order == "channel" || order == "row", "slicing: unknown order",
         std::string_view(order));
  std::vector<Axis> axes{position, channel, filter};
  if (order == "paper") axes = {filter, channel, position};
  if (order == "channel") axes = {channel, position, filter};
  // Axes of one element are left out, and axes that continue each other in memory are merged.
  auto& merged = slicing.axes_;
  merged.clear();
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (!merged.empty() && axis.stride == merged.back().extent * merged.back().stride) {
      merged.back().extent *= axis.extent;
    } else {
      merged.push_back(axis);
    }
  }
  if (merged.empty()) merged = {{1, 1}};
  return slicing;
}

std::size_t Slicing::natural_slice() const {
  const auto max =
      std::min(kLongestNaturalSlice,
               static_cast<std::size_t>(std::sqrt(8.0 * static_cast<double>(elements_))));
  std::size_t slice = 1;
  for (const Axis& axis : axes_) {
    const bool whole = slice * axis.extent <= max;
    slice *= whole ? axis.extent : largest_divisor(axis.extent, max / slice);
    if (!whole) break;
  }
  // Without useful divisors, or without a shape, any cut is as good.
  if (axes_.size() == 1 || 4 * slice < max) slice = max;
  return std::min(slice, elements_);
}

template <typename Copy>
void Slicing::for_strips(std::size_t place, std::size_t count, Copy copy) const {
  ensure(place + count <= elements_, "slicing: places must be inside the tensor", place, count,
         elements_);
  const Axis& fastest = axes_[0];
  for (std::size_t done = 0; done < count;) {
    // A block is a part of a row of the fastest axis, or several whole rows along the next axis.
    std::size_t row = (place + done) / fastest.extent;
    const std::size_t first = (place + done) % fastest.extent;
    const std::size_t columns = std::min(count - done, fastest.extent - first);
    std::size_t rows = 1;
    if (axes_.size() > 1 && columns == fastest.extent) {
      rows = std::min((count - done) / columns, axes_[1].extent - row % axes_[1].extent);
    }
    std::size_t element = offset_ + first * fastest.stride;
    for (std::size_t a = 1; a < axes_.size(); ++a) {
      element += row % axes_[a].extent * axes_[a].stride;
      row /= axes_[a].extent;
    }
    const std::size_t row_stride = rows > 1 ? axes_[1].stride : 0;
    const std::size_t strip = fastest.stride == 1 ? columns : kStripColumns;
    for (std::size_t column = 0; column < columns; column += strip) {
      for (std::size_t r = 0; r < rows; ++r) {
        copy(element + column * fastest.stride + r * row_stride, done + r * columns + column,
             std::min(strip, columns - column));
      }
    }
    done += rows * columns;
  }
}

void Slicing::gather(std::span<const float> bucket, std::size_t place, std::span<float> out) const {
  const std::size_t stride = axes_[0].stride;
  for_strips(place, out.size(), [&](std::size_t element, std::size_t at, std::size_t count) {
    copy_strip(&bucket[element], stride, &out[at], 1, count);
  });
}

void Slicing::scatter(std::span<const float> in, std::size_t place, std::span<float> bucket) const {
  if (contiguous() && in.data() == &bucket[offset_ + place]) return;  // a view
  const std::size_t stride = axes_[0].stride;
  for_strips(place, in.size(), [&](std::size_t element, std::size_t at, std::size_t count) {
    copy_strip(&in[at], 1, &bucket[element], stride, count);
  });
}

}  // namespace thinreduce

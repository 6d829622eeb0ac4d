#include "thinreduce/methods/gradiveq/slicing.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

// Long enough to hold what neighbours have in common, short enough that a basis of an eighth of it
// stays in the first-level cache.
constexpr std::size_t kLongestNaturalSlice = 256;

// Of a block that is turned: as many columns at a time as a cache line has floats. The lines on
// the far side, one a column, stay in the cache for all rows.
constexpr std::size_t kColumns = 16;

template <typename Float>
struct Strided {
  Float* first;
  std::size_t stride;
};

void copy_strided(Strided<const float> from, Strided<float> to, std::size_t count) {
  if (from.stride == 1 && to.stride == 1) {
    std::copy_n(from.first, count, to.first);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) to.first[i * to.stride] = from.first[i * from.stride];
}

std::size_t largest_divisor(std::size_t number, std::size_t most) {
  for (std::size_t divisor = std::min(number, most); divisor > 1; --divisor) {
    if (number % divisor == 0) return divisor;
  }
  return 1;
}

}  // namespace

Slicing Slicing::of_run(std::size_t offset, std::size_t elements) {
  Slicing slicing;
  slicing.offset_ = offset;
  slicing.elements_ = elements;
  slicing.axes_ = {{elements, 1}};
  return slicing;
}

Slicing Slicing::of_tensor(const Tensor& tensor, const std::string& order) {
  const std::size_t elements = tensor.elements();
  if (tensor.shape.size() < 2 || elements == 0) return of_run(tensor.offset, elements);
  const auto filters = static_cast<std::size_t>(tensor.shape[0]);
  const auto depth = static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t area = elements / filters / depth;
  const Axis filter{filters, depth * area};
  const Axis channel{depth, area};
  const Axis position{area, 1};

  std::vector<Axis> axes;
  if (order == "paper") {
    axes = {filter, channel, position};
  } else if (order == "channel") {
    axes = {channel, position, filter};
  } else {
    ensure(order == "row", "an order that exists");
    axes = {position, channel, filter};
  }
  // Axes of one element say nothing, and axes that follow each other in memory are one.
  Slicing slicing = of_run(tensor.offset, elements);
  slicing.axes_.clear();
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    auto& merged = slicing.axes_;
    if (!merged.empty() && axis.stride == merged.back().extent * merged.back().stride) {
      merged.back().extent *= axis.extent;
    } else {
      merged.push_back(axis);
    }
  }
  if (slicing.axes_.empty()) slicing.axes_ = {{1, 1}};
  return slicing;
}

void Slicing::cut(std::size_t slice) {
  slice_ = slice <= elements_ ? slice : 0;
}

std::size_t Slicing::natural_slice() const {
  const auto most =
      std::min(kLongestNaturalSlice,
               static_cast<std::size_t>(std::sqrt(8.0 * static_cast<double>(elements_))));
  std::size_t slice = 1;
  for (const Axis& axis : axes_) {
    if (slice * axis.extent <= most) {
      slice *= axis.extent;
      continue;
    }
    slice *= largest_divisor(axis.extent, most / slice);
    break;
  }
  // Extents without useful divisors, or a bucket without shapes: any cut is as good.
  const bool shapeless = axes_.size() == 1;
  if (shapeless || 4 * slice < most) slice = most;
  return std::min(slice, elements_);
}

template <typename Visit>
void Slicing::for_blocks(std::size_t place, std::size_t count, Visit visit) const {
  const Axis& fastest = axes_[0];
  while (count > 0) {
    std::size_t rest = place / fastest.extent;
    const std::size_t first = place % fastest.extent;
    Block block{.element = offset_ + first * fastest.stride,
                .count = std::min(count, fastest.extent - first),
                .stride = fastest.stride};
    if (axes_.size() > 1 && block.count == fastest.extent) {
      const std::size_t row = rest % axes_[1].extent;
      block.rows = std::min(count / fastest.extent, axes_[1].extent - row);
      block.row_stride = axes_[1].stride;
    }
    for (std::size_t a = 1; a < axes_.size(); ++a) {
      block.element += rest % axes_[a].extent * axes_[a].stride;
      rest /= axes_[a].extent;
    }
    visit(block);
    place += block.rows * block.count;
    count -= block.rows * block.count;
  }
}

void Slicing::gather(std::span<const float> bucket, std::size_t place, std::span<float> out) const {
  ensure(place + out.size() <= elements_, "gather inside the tensor");
  float* to = out.data();
  for_blocks(place, out.size(), [&](const Block& block) {
    const float* from = bucket.data() + block.element;
    for (std::size_t at = 0; at < block.count; at += kColumns) {
      const std::size_t columns = std::min(kColumns, block.count - at);
      for (std::size_t row = 0; row < block.rows; ++row) {
        const float* in = from + at * block.stride + row * block.row_stride;
        copy_strided({in, block.stride}, {to + row * block.count + at, 1}, columns);
      }
    }
    to += block.rows * block.count;
  });
}

void Slicing::scatter(std::span<const float> in, std::size_t place, std::span<float> bucket) const {
  ensure(place + in.size() <= elements_, "scatter inside the tensor");
  const float* from = in.data();
  for_blocks(place, in.size(), [&](const Block& block) {
    float* to = bucket.data() + block.element;
    for (std::size_t at = 0; at < block.count; at += kColumns) {
      const std::size_t columns = std::min(kColumns, block.count - at);
      for (std::size_t row = 0; row < block.rows; ++row) {
        float* out = to + at * block.stride + row * block.row_stride;
        copy_strided({from + row * block.count + at, 1}, {out, block.stride}, columns);
      }
    }
    from += block.rows * block.count;
  });
}

}  // namespace thinreduce

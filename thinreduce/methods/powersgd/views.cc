#include "thinreduce/methods/powersgd/views.h"

#include <cmath>

namespace thinreduce {
namespace {

void add_view(MatrixViews& views, const MatrixView& view, std::size_t basis) {
  if (view.elements() == 0) return;
  if (basis * (view.rows + view.columns) < view.elements()) {
    views.matrices.push_back(view);
  } else {
    views.plain.push_back({view.offset, 1, view.elements()});
  }
}

}  // namespace

MatrixViews view_as_matrices(const BucketLayout& layout, std::size_t basis) {
  MatrixViews views;
  if (layout.tensors.empty() && layout.elements > 0) {
    const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(layout.elements)));
    const std::size_t columns = layout.elements / rows;
    add_view(views, {0, rows, columns}, basis);
    add_view(views, {rows * columns, 1, layout.elements - rows * columns}, basis);
  }
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.elements() == 0) continue;
    const std::size_t rows =
        tensor.shape.size() < 2 ? 1 : static_cast<std::size_t>(tensor.shape[0]);
    add_view(views, {tensor.offset, rows, tensor.elements() / rows}, basis);
  }
  return views;
}

}  // namespace thinreduce

// What GradiveqBases shows to an archive.
#include <fmt/format.h>

#include <bit>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/bases.h"

namespace thinreduce {
namespace {

void number(Archive& archive, std::string_view name, double& value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  archive.number(name, bits);
  value = std::bit_cast<double>(bits);
}

void number(Archive& archive, std::string_view name, bool& value) {
  std::uint64_t bit = value ? 1 : 0;
  archive.number(name, bit);
  value = bit != 0;
}

void number(Archive& archive, std::string_view name, std::size_t& value, std::size_t most) {
  std::uint64_t wide = value;
  archive.number(name, wide);
  if (wide > most) {
    throw Error(ErrorCode::bad_state,
                fmt::format("gradiveq: {} is {}, more than {}", name, wide, most));
  }
  value = wide;
}

void layer_state(Archive& archive, GradiveqLayer& layer) {
  number(archive, "decided", layer.decided);
  number(archive, "order", layer.chosen, layer.candidates.size() - 1);
  number(archive, "fresh", layer.fresh);
  std::vector<float> mean_share{layer.mean_share};
  archive.replicated("mean share", mean_share);
  std::size_t rank = layer.basis.rank();
  const std::size_t slice = layer.slicing().slice();
  number(archive, "rank", rank, slice);
  std::vector<float> columns = layer.basis.columns();
  archive.replicated("basis", columns);
  if (mean_share.size() != 1 || !(mean_share[0] >= 0 && mean_share[0] <= 1) ||
      columns.size() != slice * rank || kernels::first_nonfinite(columns) != columns.size()) {
    throw Error(ErrorCode::bad_state,
                fmt::format("gradiveq: the basis of tensor '{}' is not one of {} x {}", layer.name,
                            slice, rank));
  }
  layer.mean_share = mean_share[0];
  layer.basis = rank == 0 ? Basis() : Basis(columns, slice, rank);
}

}  // namespace

void GradiveqBases::state(Archive& archive) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    GradiveqLayer& layer = layers_[l];
    Book& book = books_[l];
    layer_state(archive, layer);
    archive.number("renewed at", book.renewed_at);
    archive.owned(l, [&] {
      number(archive, "agreement", book.agreement);
      number(archive, "strength", book.strength);
      book.pending.clear();
      if (layer.decided && book.evidence.size() != 1) {
        const std::size_t slice = layer.slicing().slice();
        book.evidence.assign(1, {SliceStatistics(slice), SliceStatistics(slice)});
      }
      for (Evidence& evidence : book.evidence) {
        evidence.fit.state(archive);
        evidence.test.state(archive);
      }
    });
  }
}

}  // namespace thinreduce

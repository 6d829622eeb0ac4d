#include "thinreduce/engine/registered_bucket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "thinreduce/engine/state_file.h"
#include "thinreduce/error.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/auto.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// Throws Error{bad_input} unless the tensors follow one another and fill the bucket.
void check_layout(const BucketLayout& layout) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_input, fmt::format("bucket {}: {}", layout.id, why));
  };
  std::size_t next = 0;
  for (const Tensor& tensor : layout.tensors) {
    std::size_t left = layout.elements - next;
    for (const auto extent : tensor.shape) {
      if (extent < 0) {
        refuse(fmt::format("tensor '{}' has shape ({}); dimensions must not be negative",
                           tensor.name, fmt::join(tensor.shape, ", ")));
      }
      // Divides instead of multiplying: a product of hostile extents may overflow.
      left = extent == 0 ? 0 : left / static_cast<std::size_t>(extent);
    }
    const bool has_zero = std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0;
    if (tensor.offset != next || (left == 0 && !has_zero)) {
      refuse(fmt::format(
          "tensor '{}' of shape ({}) at offset {} does not fit: the tensors before it end at {}, "
          "and the bucket has {} elements",
          tensor.name, fmt::join(tensor.shape, ", "), tensor.offset, next, layout.elements));
    }
    next += tensor.elements();
  }
  if (!layout.tensors.empty() && next != layout.elements) {
    refuse(fmt::format("its tensors have {} elements, the bucket has {}; they must be the same",
                       next, layout.elements));
  }
}

// Hashes everything about a bucket that must be the same on all ranks and is not in the session's
// settings: size, own spec, own name, and names, offsets and shapes of the tensors.
// docs/wire-format.md has the text.
std::uint64_t hash_layout(const BucketLayout& layout) {
  std::string text = fmt::format("{}{}", layout.elements, layout.spec);
  if (!layout.name.empty()) text += fmt::format("#{}", layout.name);
  for (const Tensor& tensor : layout.tensors) {
    text += fmt::format("|{}@{}:{}", tensor.name, tensor.offset, fmt::join(tensor.shape, "x"));
  }
  return checksum(text);
}

// Returns whether a method of this spec owes anything to later steps: it shows a residual.
bool keeps_residual(const Spec& spec) {
  BucketLayout layout;
  layout.elements = 1;
  const auto method = spec.make({.layout = layout, .rank = 0, .world = 1, .seed = 0});
  BucketState state;
  state.fields = save_fields([&](Archive& archive) { method->state(archive); }, {});
  const auto fields = split_fields(state);
  return std::any_of(fields.begin(), fields.end(),
                     [](const StateField& field) { return field.kind == FieldKind::summed; });
}

}  // namespace

RegisteredBucket::RegisteredBucket(BucketLayout given, Spec parsed, std::size_t min_elements)
    : layout(std::move(given)), spec(std::move(parsed)) {
  check_layout(layout);
  hash = hash_layout(layout);
  compressed = {.id = layout.id, .elements = layout.elements, .tensors = {}, .spec = layout.spec};
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.shape.size() < 2 || tensor.elements() < min_elements) {
      raw += tensor.elements();
    } else {
      compressed.tensors.push_back(tensor);
    }
  }
  if (layout.tensors.empty() && layout.elements < min_elements) raw = layout.elements;
  if (spec.is_auto()) {
    compressible = has_method = false;
    for (const Candidate& candidate : auto_options(spec).candidates) {
      variants.push_back(std::make_shared<RegisteredBucket>(layout, candidate.spec, min_elements));
    }
    return;
  }
  compressible = raw < layout.elements && spec.info->compresses;
  has_method = compressible || spec.update();
  keeps = keeps_residual(spec);
}

}  // namespace thinreduce

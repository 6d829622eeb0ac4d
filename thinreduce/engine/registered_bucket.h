// A bucket as a session keeps it from add_bucket() on: its layout is checked, hashed and split, and
// its spec parsed, once and not in every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "thinreduce/method/layout.h"
#include "thinreduce/method/spec.h"

namespace thinreduce {

// The number of the bucket in messages that belong to none.
inline constexpr std::uint32_t kNoBucket = 0xFFFFFFFF;

struct RegisteredBucket {
  // Tensors with fewer elements than `min_elements`, and 1-D tensors, are not compressed. Throws
  // Error{bad_input} unless the tensors fill the bucket.
  RegisteredBucket(BucketLayout given, Spec parsed, std::size_t min_elements);

  [[nodiscard]] std::uint32_t id() const { return layout.id; }
  [[nodiscard]] std::size_t elements() const { return layout.elements; }

  BucketLayout layout;
  Spec spec;
  std::uint64_t hash = 0;    // of the layout; the ranks compare it
  BucketLayout compressed;   // the layout with only those tensors that the method compresses
  std::size_t raw = 0;       // number of elements outside these tensors
  bool compressible = true;  // whether there is anything that the spec's method compresses
  bool keeps = false;        // whether the spec's method keeps a residual: nothing may be lost then
  // Whether a Method object serves the bucket: also one of which nothing is compressed, if the
  // method turns means into updates.
  bool has_method = true;
  // With the spec `auto`: the bucket with the spec of each candidate, fp32 first.
  std::vector<std::shared_ptr<const RegisteredBucket>> variants;
};

}  // namespace thinreduce

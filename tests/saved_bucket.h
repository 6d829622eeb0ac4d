// A bucket's state as a rank saved it: what the rank still owes to the sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/method/method.h"

namespace thinreduce {

struct SavedAs {
  std::string spec;
  BucketLayout layout;
  std::size_t min_elements = 1024;
};

class Saved {
 public:
  Saved(const SavedAs& as, const RankInWorld& place, const std::vector<std::byte>& bytes) {
    const RegisteredBucket bucket(as.layout, Spec::parse(as.spec), as.min_elements);
    if (bucket.has_method) {
      const BucketLayout nothing{.id = as.layout.id, .elements = 0, .tensors = {}};
      method_ = bucket.spec.make({.layout = bucket.compressible ? bucket.compressed : nothing,
                                  .rank = place.rank,
                                  .world = place.world});
    }
    owed_.resize(as.layout.elements);
    if (bytes.empty()) return;  // before the first step
    const auto buckets = decode_state(bytes, "test").buckets;
    const auto found = buckets.find(as.layout.id);
    if (found == buckets.end()) return;
    step_ = found->second.step;
    std::vector<float> unsent;
    const auto show = [&](Archive& archive) {
      if (bucket.keeps) {
        archive.summed("unsent", unsent, Archive::Length::per_element_or_none);
      }
      if (method_) method_->state(archive);
    };
    load_fields(show, found->second, as.layout.id, place);
    if (bucket.compressible) method_->add_residual(owed_);
    // A method may leave anything outside the tensors that it compresses; nobody sees it.
    for_uncompressed(bucket.compressed, [&](std::size_t first, std::size_t count) {
      if (bucket.compressible) std::fill_n(&owed_[first], count, 0.0F);
    });
    for (std::size_t i = 0; i < unsent.size(); ++i) owed_[i] += unsent[i];
  }

  // Returns what the rank still owes to the sum, per element.
  [[nodiscard]] const std::vector<float>& owed() const { return owed_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t fingerprint() const { return method_ ? method_->fingerprint() : 0; }

 private:
  std::unique_ptr<Method> method_;
  std::vector<float> owed_;
  std::uint64_t step_ = 0;
};

}  // namespace thinreduce

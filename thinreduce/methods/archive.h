// The state of a method as an archive sees it: one `state()` function serves saving, loading and
// counting.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace thinreduce {

class Archive {
 public:
  virtual ~Archive() = default;
  // One float an element of the bucket: a residual, a momentum. Follows its tensor when buckets are
  // regrouped.
  virtual void per_element(std::string_view name, std::vector<float>& values) = 0;
  // Anything else.
  virtual void floats(std::string_view name, std::vector<float>& values) = 0;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;
};

}  // namespace thinreduce

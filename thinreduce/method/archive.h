// The state of a method as an archive sees it: one `state()` function serves saving and loading.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace thinreduce {

class Archive {
 public:
  virtual ~Archive() = default;
  // One float an element that this rank owes to the sum. Where the states of two ranks become one,
  // because a training goes on with fewer, what they owe is added.
  virtual void residual(std::string_view name, std::vector<float>& values) { floats(name, values); }
  // The same for what is not counted by elements.
  virtual void owed(std::string_view name, std::vector<float>& values) { floats(name, values); }
  // One float an element that is no debt.
  virtual void per_element(std::string_view name, std::vector<float>& values) {
    floats(name, values);
  }
  // Anything else.
  virtual void floats(std::string_view name, std::vector<float>& values) = 0;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;
};

}  // namespace thinreduce

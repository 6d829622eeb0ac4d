// Figures of one step, by name.
#pragma once

#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace thinreduce {

// A figure for which there is no memory is left out: a method reports after its gradient is
// delivered, where a step must not fail any more.
class Statistics {
 public:
  double& operator[](std::string_view name) noexcept {
    try {
      return figures_[std::string(name)];
    } catch (const std::bad_alloc&) {
      return left_out_;
    }
  }

  [[nodiscard]] const std::map<std::string, double>& figures() const { return figures_; }
  [[nodiscard]] std::map<std::string, double> take() noexcept { return std::move(figures_); }

 private:
  std::map<std::string, double> figures_;
  double left_out_ = 0;
};

}  // namespace thinreduce

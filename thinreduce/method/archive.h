// The state of a method as an archive sees it: one `state()` function serves saving and loading.
//
// A field's kind says what happens to it when a run continues with another number of ranks: summed
// fields of ranks that become one are added, replicated ones are copied from one rank, and an owned
// part moves to its new owner. The engine needs to know no more about a method to do that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace thinreduce {

class Archive {
 public:
  // What a loaded field's length is checked against.
  enum class Length {
    per_element,  // one value per element of the bucket, or empty before the first step
    any,          // the method checks it
  };

  Archive(int rank, int world) : rank_(rank), world_(world) {}
  virtual ~Archive() = default;

  // Shows what this rank owes to the sum over the ranks, such as a residual.
  virtual void summed(std::string_view name, std::vector<float>& values,
                      Length length = Length::per_element) = 0;
  // Shows anything else: mostly the same on all ranks, such as a mean or a basis.
  virtual void replicated(std::string_view name, std::vector<float>& values,
                          Length length = Length::any) = 0;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;

  // Shows fields that only the owner of `part` keeps: calls `show` at that rank alone. Parts must
  // be numbered 0, 1, 2, ... in the order in which they are shown, the same on all ranks.
  void owned(std::size_t part, const std::function<void()>& show) {
    begin_part(part);
    if (owner_of(part, world_) == rank_) show();
    end_part(part);
  }
  // Returns the rank that owns `part` in a world of `world` ranks.
  [[nodiscard]] static int owner_of(std::size_t part, int world) {
    return static_cast<int>(part % static_cast<std::size_t>(world));
  }

 protected:
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world() const { return world_; }

 private:
  // Enclose the fields of a part, also where it is empty because another rank owns it.
  virtual void begin_part(std::size_t part) = 0;
  virtual void end_part(std::size_t part) = 0;

  int rank_;
  int world_;
};

}  // namespace thinreduce

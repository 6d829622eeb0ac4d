// An archive saves or loads the state of a method: one `state()` function serves both.
//
// A field's kind says what happens to it when a run continues with another number of ranks: summed
// fields of ranks that become one are added, replicated ones are copied from one rank, and an owned
// part moves to its new owner. The engine needs no other knowledge of a method for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace thinreduce {

class Archive {
 public:
  // The length that a loaded field must have.
  enum class Length {
    per_element,  // one value per element of the bucket, or none before the first step
    any,          // checked by the method
  };

  Archive(int rank, int world) : rank_(rank), world_(world) {}
  virtual ~Archive() = default;

  // Shows values that count as this rank's part of a sum over the ranks, such as a residual.
  virtual void summed(std::string_view name, std::vector<float>& values,
                      Length length = Length::per_element) = 0;
  // Shows any other values; most are the same on all ranks, such as a mean or a basis.
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
  // Enclose the fields of a part. On ranks that do not own it the part is empty.
  virtual void begin_part(std::size_t part) = 0;
  virtual void end_part(std::size_t part) = 0;

  int rank_;
  int world_;
};

}  // namespace thinreduce

// An archive saves or loads the state of a method: one `state()` function serves both.
//
// A loaded file is untrusted: the archive refuses floats that are not finite, fields of another
// length than the method declares and numbers outside the range that it declares. A method checks
// conditions over several fields itself, when loading() is true.
//
// A field's kind says what happens to it when a run continues with another number of ranks: summed
// fields of ranks that become one are added, replicated ones are copied from one rank, and a
// section moves to its new keeper. The engine needs no other knowledge of a method for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace thinreduce {

class Archive {
 public:
  // The length that a loaded field must have.
  enum class Length {
    per_element,          // one value per element of the bucket
    per_element_or_none,  // the same, or no values before the first step
    any,                  // checked by the method
  };

  // The steps of a training run, as far as a state may count them: a step times a number of
  // elements is then still an exact integer.
  static constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 40;

  Archive(int rank, int world) : rank_(rank), world_(world) {}
  virtual ~Archive() = default;

  // Shows values that count as this rank's part of a sum over the ranks, such as a residual. A rank
  // that joins a run owes nothing: its loaded field is empty, or zeros for Length::per_element.
  virtual void summed(std::string_view name, std::vector<float>& values,
                      Length length = Length::per_element) = 0;
  // Shows any other values; most are the same on all ranks, such as a mean or a basis.
  virtual void replicated(std::string_view name, std::vector<float>& values,
                          Length length = Length::any) = 0;
  virtual void number(std::string_view name, std::uint64_t& value) = 0;

  // Returns whether fields are replaced by loaded ones.
  [[nodiscard]] virtual bool loading() const = 0;

  // Shows a flag or a count from 0 to `max`. Throws Error{bad_state} for a loaded value beyond it.
  template <typename Count>
  void count(std::string_view name, Count& value, std::uint64_t max) {
    auto bits = static_cast<std::uint64_t>(value);
    number(name, bits);
    if (loading()) check_count(name, bits, max);
    value = static_cast<Count>(bits);
  }
  void flag(std::string_view name, bool& value) { count(name, value, 1); }

  // Shows a floating-point number from `min` to `max`, as the bits of a double. Throws
  // Error{bad_state} for a loaded value outside.
  struct Range {
    double min = 0;
    double max = 1;
  };
  template <typename Real>
  void real(std::string_view name, Real& value, Range range) {
    static_assert(std::is_floating_point_v<Real>);
    value = static_cast<Real>(exchange_real(name, static_cast<double>(value), range));
  }
  // Throws Error{bad_state} if one of these loaded values is outside the range.
  void check_range(std::string_view name, const std::vector<float>& values, Range range) const;

  // Shows a section: fields that only one rank has, its keeper. Calls `show` at the keeper alone,
  // unless the section was lost with its last keeper. Sections must be numbered 0, 1, 2, ... in the
  // order in which they are shown, the same on all ranks.
  void section(std::size_t number, const std::function<void()>& show) {
    begin_section(number);
    if (keeper_of(number, world_) == rank_ && !section_is_lost()) show();
    end_section(number);
  }
  // Returns the rank that keeps this section in a world of `world` ranks.
  [[nodiscard]] static int keeper_of(std::size_t section, int world) {
    return static_cast<int>(section % static_cast<std::size_t>(world));
  }

 protected:
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world() const { return world_; }

 private:
  static void check_count(std::string_view name, std::uint64_t value, std::uint64_t max);
  double exchange_real(std::string_view name, double value, Range range);

  // Enclose the fields of a section, which is empty on every rank but its keeper.
  virtual void begin_section(std::size_t number) = 0;
  virtual void end_section(std::size_t number) = 0;
  // Returns whether the section that has begun has nothing to load, although this rank keeps it.
  [[nodiscard]] virtual bool section_is_lost() const { return false; }

  int rank_;
  int world_;
};

}  // namespace thinreduce

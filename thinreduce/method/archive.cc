#include "thinreduce/method/archive.h"

#include <fmt/format.h>

#include <bit>

#include "thinreduce/error.h"

namespace thinreduce {

void Archive::check_count(std::string_view name, std::uint64_t value, std::uint64_t max) {
  if (value <= max) return;
  throw Error(ErrorCode::bad_state,
              fmt::format("field '{}' is {} and must be at most {}", name, value, max));
}

double Archive::exchange_real(std::string_view name, double value, Range range) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  number(name, bits);
  const auto shown = std::bit_cast<double>(bits);
  if (loading() && !(shown >= range.min && shown <= range.max)) {
    throw Error(ErrorCode::bad_state, fmt::format("field '{}' is {} and must be between {} and {}",
                                                  name, shown, range.min, range.max));
  }
  return shown;
}

void Archive::check_range(std::string_view name, const std::vector<float>& values,
                          Range range) const {
  if (!loading()) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= range.min && values[i] <= range.max) continue;
    throw Error(ErrorCode::bad_state,
                fmt::format("value {} of '{}' is {} and must be between {} and {}", i, name,
                            values[i], range.min, range.max));
  }
}

}  // namespace thinreduce

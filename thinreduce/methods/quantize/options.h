// Options and checks that the quantizing methods (dqsg, ndqsg, qsgd, terngrad) share.
#pragma once

#include <cstdint>
#include <string>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/quantize/quantized_gather.h"

namespace thinreduce {

// By default one scale serves a whole layer.
[[nodiscard]] OptionInfo block_option();
[[nodiscard]] OptionInfo block_option(long long elements);
// Returns the maximum number of elements that share a scale.
[[nodiscard]] std::size_t block_elements(const Options& options);
[[nodiscard]] BlockQuantizer block_quantizer(const Options& options, const MethodSetup& setup,
                                             std::uint32_t levels_per_side);
// `when` comes first in the help text.
[[nodiscard]] OptionInfo entropy_option(const std::string& when = "");
[[nodiscard]] OptionInfo feedback_option();
// The levels of an owner's answer, which must be odd, and the number of those on each side of zero.
// `levels` is the number with 16 ranks or more. A mean over fewer ranks has more error of its own:
// answer_levels=auto then takes fewer, in proportion to the square root of the ranks.
// `note` is added to the help text.
[[nodiscard]] OptionInfo answer_levels_option(long long levels, const std::string& note = "");
[[nodiscard]] std::uint32_t answer_levels_per_side(const Options& options, long long levels,
                                                   int world);
// Throws Error{bad_spec} if answer_levels is even.
void check_answer_levels(const std::string& method, const Options& options);
// Levels for parts that are dithered, and for those that are rounded stochastically.
inline constexpr long long kDitheredAnswerLevels = 51;
inline constexpr long long kStochasticAnswerLevels = 9;
inline constexpr long long kFineStochasticAnswerLevels = 11;  // for parts of more than 4 bits
// `beyond` says in the help text what becomes of the clipped part.
[[nodiscard]] OptionInfo clip_option(double value, const std::string& beyond);

// Throws Error unless `levels`, the value of option `name`, is odd.
void require_odd(const std::string& method, const std::string& name, long long levels);

// Throws Error for buckets with too many elements and for more levels than the sum over all ranks
// has room for. `levels_per_side` is the number of levels on each side of zero.
void check_quantizer(const std::string& method, const MethodSetup& setup,
                     std::uint32_t levels_per_side);

// The levels of stochastic rounding: on each side of zero, and in all of an owner's answer.
struct StochasticLevels {
  std::uint32_t per_side = 1;
  long long answer = kStochasticAnswerLevels;
};

// Settings for stochastic rounding without dither subtraction, from the options above. Checks them.
[[nodiscard]] QuantizedGatherOptions stochastic_settings(const std::string& method,
                                                         const Options& options,
                                                         const MethodSetup& setup,
                                                         const StochasticLevels& levels);

// Returns whether owners reduce the codes of a quantizer; see gather_or_owner.h.
[[nodiscard]] bool codes_by_owners(const Options& options, const MethodSetup& setup);

}  // namespace thinreduce

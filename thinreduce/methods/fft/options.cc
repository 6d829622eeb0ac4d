#include "thinreduce/methods/fft/options.h"

#include <fmt/format.h>

#include "thinreduce/error.h"
#include "thinreduce/methods/fft/range_float.h"
#include "thinreduce/methods/gather_or_owner.h"

namespace thinreduce {

std::vector<OptionInfo> fft_option_infos() {
  return {
      OptionInfo::number(
          "theta", 0.85, 0, 0.9999,
          "Fraction of the spectrum that is dropped. auto: starts at 0.85, and drops "
          "less while the kept frequencies hold a smaller fraction of the squared "
          "gradient than the option energy requires.")
          .or_word("auto"),
      OptionInfo::choice("schedule", "constant", {"constant", "linear", "cosine", "step"},
                         "How theta changes to theta_end during the first `steps` training steps. "
                         "step (piecewise constant): theta changes at four points and is constant "
                         "between them. theta=auto needs schedule=constant."),
      OptionInfo::number(
          "theta_end", 0, 0, 0.9999,
          "theta at the end of the schedule; 0 drops nothing. Ignored with schedule=constant."),
      OptionInfo::integer(
          "steps", 10000, 1, 1'000'000'000,
          "Length of the schedule in training steps; ignored with schedule=constant."),
      OptionInfo::number("energy", 0.3, 0, 1,
                         "With theta=auto: minimum fraction of the squared gradient that the kept "
                         "frequencies must hold, on average over the ranks; otherwise ignored."),
      OptionInfo::integer("bits", 10, kernels::kMinRangeBits, kernels::kMaxRangeBits,
                          "Bits per sent coefficient, its sign included."),
      OptionInfo::integer("mantissa", 5, 0, 15,
                          "Mantissa bits per sent coefficient; must be smaller than bits. auto: "
                          "the number with the smallest error, chosen in every step.")
          .or_else("auto"),
      OptionInfo::choice(
          "block", "auto",
          {"auto", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"},
          "Elements that are transformed together. auto: 64."),
      OptionInfo::choice("transform", "fft", {"fft", "dct"},
                         "Transform of the blocks: fft (Fourier) or dct (cosine)."),
      OptionInfo::on_off("feedback", true,
                         "on: the part of the gradient that was not sent is added to the next "
                         "step's gradient (error feedback). off: it is discarded."),
      gather_or_owner_option("its frequencies to the owners of their blocks, which send the "
                             "strongest of the summed frequencies to all",
                             kMaxRanksToGatherSparse),
  };
}

FftOptions read_fft_options(const Options& given) {
  FftOptions options;
  options.bits = static_cast<int>(given.integer("bits"));
  if (given.text("mantissa") != "auto") {
    options.mantissa = static_cast<int>(given.integer("mantissa"));
    if (*options.mantissa >= options.bits) {
      throw Error(ErrorCode::bad_spec,
                  fmt::format("fft: mantissa must be smaller than bits (got mantissa={}, bits={}); "
                              "lower mantissa, or use mantissa=auto",
                              *options.mantissa, options.bits));
    }
  }
  options.block_length =
      given.text("block") == "auto" ? kBestBlock : static_cast<std::size_t>(given.integer("block"));
  options.transform =
      given.text("transform") == "dct" ? kernels::Transform::dct : kernels::Transform::fft;
  options.feedback = given.on("feedback");
  options.schedule.kind = ThetaSchedule::kind_named(given.text("schedule"));
  options.schedule.end = given.number("theta_end");
  options.schedule.steps = static_cast<std::uint64_t>(given.integer("steps"));
  if (given.text("theta") == "auto") {
    if (given.text("schedule") != "constant") {
      throw Error(ErrorCode::bad_spec,
                  fmt::format("fft: theta=auto needs schedule=constant (got schedule={}); give "
                              "theta a number, or leave schedule out",
                              given.text("schedule")));
    }
    options.control.emplace(options.schedule.start, given.number("energy"));
  } else {
    options.schedule.start = given.number("theta");
  }
  return options;
}

}  // namespace thinreduce

#include "thinreduce/methods/fft/options.h"

#include "thinreduce/error.h"
#include "thinreduce/methods/fft/range_float.h"

namespace thinreduce {

std::vector<OptionInfo> fft_option_infos() {
  return {
      OptionInfo::number("theta", 0.85, 0, 0.9999,
                         "share of the spectrum that is dropped; auto: 0.85, and less while what "
                         "is kept has too little energy")
          .or_word("auto"),
      OptionInfo::choice("schedule", "constant", {"constant", "linear", "cosine", "step"},
                         "how theta goes to theta_end"),
      OptionInfo::number("theta_end", 0, 0, 0.9999, "theta after so many steps"),
      OptionInfo::integer("steps", 10000, 1, 1'000'000'000, "steps of the schedule"),
      OptionInfo::number("energy", 0.3, 0, 1,
                         "theta=auto: the least share of energy that must be kept"),
      OptionInfo::integer("bits", 10, kernels::kLeastRangeBits, kernels::kMostRangeBits,
                          "bits of a coefficient"),
      OptionInfo::integer("mantissa", 5, 0, 15,
                          "mantissa bits of a coefficient; auto: the best in each step")
          .or_else("auto"),
      OptionInfo::choice(
          "block", "auto",
          {"auto", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"},
          "floats that are transformed together"),
      OptionInfo::choice("transform", "fft", {"fft", "dct"}, "Fourier or cosine transform"),
      OptionInfo::on_off("feedback", true,
                         "keep what is not sent and add it to the next gradient; off: forget it"),
  };
}

FftOptions read_fft_options(const Options& given) {
  FftOptions options;
  options.bits = static_cast<int>(given.integer("bits"));
  if (given.text("mantissa") != "auto") {
    options.mantissa = static_cast<int>(given.integer("mantissa"));
    if (*options.mantissa >= options.bits) {
      throw Error(ErrorCode::bad_spec, "fft: mantissa must be smaller than bits");
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
                  "fft: theta=auto finds theta in every step, so there is no "
                  "schedule; give a number for theta, or no schedule");
    }
    options.control.emplace(options.schedule.start, given.number("energy"));
  } else {
    options.schedule.start = given.number("theta");
  }
  return options;
}

}  // namespace thinreduce

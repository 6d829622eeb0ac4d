#include "thinreduce/methods/fft.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/kernels/unit_selector.h"
#include "thinreduce/methods/archive.h"
#include "thinreduce/methods/fft_blocks.h"
#include "thinreduce/methods/fft_payload.h"
#include "thinreduce/methods/theta.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// The mantissa is chosen by the error on about this many of the values.
constexpr std::size_t kFormatSample = 2048;

// The threshold is guessed from one group in so many: from all in small buckets, else from 16 and
// more.
std::size_t sample_stride(std::size_t groups) {
  return std::clamp<std::size_t>(groups / 16, 1, 32);
}

struct FftOptions {
  ThetaSchedule schedule;
  std::optional<ThetaControl> control;  // theta=auto
  int bits = 10;
  std::optional<int> mantissa;  // nothing: the best for each payload
  std::size_t block_length = 256;
  kernels::Transform transform = kernels::Transform::fft;
  bool feedback = true;
};

class Fft final : public Method {
 public:
  Fft(const MethodSetup& setup, const FftOptions& options)
      : options_(options),
        elements_(setup.layout.elements),
        blocks_(setup.layout, options.block_length, options.transform),
        group_(blocks_.group_floats()),
        values_(blocks_.group_floats()),
        ranks_(static_cast<std::size_t>(setup.world)) {
    if (options_.feedback) residual_.resize(elements_);
    const std::size_t stride = sample_stride(blocks_.groups());
    sample_.resize((blocks_.groups() + stride - 1) / stride * group_.size());
    own_.bitmap.resize(blocks_.groups() * group_.size() / kFloatsPerWord);
    for (auto& rank : ranks_) rank.bitmap.resize(own_.bitmap.size());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "fft: the bucket keeps its size");
    ensure(!options_.feedback || residual_.size() == elements_, "fft: a residual for each element");
    const double theta =
        options_.control ? options_.control->theta() : options_.schedule.at(exchange.id().step);
    exchange.encode([&] { encode(bucket.values, theta); });
    gather(exchange, payload_, fft_payload_limit(own_.bitmap.size(), options_.bits),
           [&](int rank, std::span<const std::byte> payload) {
             read_fft_payload(payload, rank, options_.bits, ranks_[static_cast<std::size_t>(rank)]);
           });
    // All payloads are right: from here on nothing can fail, and what was sent is delivered.
    exchange.encode([&] { keep_what_was_not_sent(); });
    exchange.decode([&] { decode(bucket.values, exchange.size()); });
    report(exchange, theta);
  }

  void state(Archive& archive) override {
    if (options_.feedback) archive.per_element("residual", residual_);
    if (options_.control) {
      auto bits = std::bit_cast<std::uint64_t>(options_.control->theta());
      archive.number("theta", bits);
      options_.control->set_theta(std::bit_cast<double>(bits));
    }
  }

  [[nodiscard]] std::uint64_t fingerprint() const override {
    if (!options_.control) return 0;
    const double theta = options_.control->theta();
    return checksum(std::as_bytes(std::span(&theta, 1)));
  }

 private:
  static constexpr std::size_t kFloatsPerWord = 2 * kernels::kUnitsPerWord;

  // What is to be sent, the residual included, becomes a spectrum; the strongest units of all of it
  // become codes. A sample of the groups comes first, so that one pass over the bucket will do.
  void encode(std::span<const float> gradient, double theta) {
    const double units = static_cast<double>(blocks_.blocks() * blocks_.block_length()) / 2;
    const auto k = static_cast<std::size_t>(std::ceil((1 - theta) * units));
    const std::size_t stride = sample_stride(blocks_.groups());
    for (std::size_t group = 0; group < blocks_.groups(); group += stride) {
      take_in(group, gradient, sampled(group / stride));
    }
    selector_.start(selector_.guess(sample_, 1 - theta), own_.bitmap);
    for (std::size_t group = 0; group < blocks_.groups(); ++group) {
      const bool is_sampled = group % stride == 0;
      if (!is_sampled) take_in(group, gradient, group_);
      selector_.add(is_sampled ? sampled(group / stride) : std::span<const float>(group_));
    }
    if (!selector_.can_find(k)) {
      selector_.start(selector_.everything(), own_.bitmap);
      for (std::size_t group = 0; group < blocks_.groups(); ++group) {
        to_spectrum(group, gradient, group_);
        selector_.add(group_);
      }
    }
    const auto selected = selector_.finish(k);
    measure_energy(selected);
    quantize(selected.values);
    write_fft_payload(own_, payload_);
  }

  // Adds a group of the gradient to the residual; the spectrum of the sum.
  void take_in(std::size_t group, std::span<const float> gradient, std::span<float> spectrum) {
    if (options_.feedback) {
      blocks_.for_runs(group, [&](std::size_t offset, std::size_t, std::size_t length) {
        kernels::add(std::span(residual_).subspan(offset, length),
                     gradient.subspan(offset, length));
      });
    }
    to_spectrum(group, gradient, spectrum);
  }
  void to_spectrum(std::size_t group, std::span<const float> gradient, std::span<float> spectrum) {
    blocks_.to_spectrum(group, options_.feedback ? std::span<const float>(residual_) : gradient,
                        spectrum);
  }
  [[nodiscard]] std::span<float> sampled(std::size_t index) {
    return std::span<float>(sample_).subspan(index * group_.size(), group_.size());
  }

  void measure_energy(const kernels::UnitSelector::Result& selected) {
    // Several sums, so that no addition waits for the one before.
    std::array<double, 8> sums{};
    for (std::size_t i = 0; i < selected.values.size(); ++i) {
      const double scaled = static_cast<double>(selected.values[i]) * selected.scale;
      sums[i % sums.size()] += scaled * scaled;
    }
    const double kept = std::accumulate(sums.begin(), sums.end(), 0.0);
    const bool finite = std::isfinite(selected.energy);
    own_.overflow = !finite && kernels::first_nonfinite(selected.values) < selected.values.size();
    own_.kept_energy = finite && selected.energy > 0
                           ? static_cast<float>(std::min(kept / selected.energy, 1.0))
                           : 1.0f;
  }

  // The range is measured anew for every payload. What lies beyond the largest coefficient is cut
  // there and waits in the residual.
  void quantize(std::span<const float> values) {
    own_.codes.resize(values.size());
    kernels::ValueRange range = kernels::range_of(values);
    range.least = std::max(range.least, -kLargestCoefficient);
    range.most = std::min(range.most, kLargestCoefficient);
    if (options_.mantissa) {
      own_.format = kernels::RangeFloat::covering(range, options_.bits, *options_.mantissa);
    } else {
      format_sample_.clear();
      const std::size_t stride = values.size() / kFormatSample + 1;
      for (std::size_t i = 0; i < values.size(); i += stride) format_sample_.push_back(values[i]);
      own_.format = kernels::RangeFloat::fitting(range, options_.bits, format_sample_);
    }
    kernels::quantize(own_.format, values, own_.codes);
  }

  // Adds a group's units times `sign` to its spectrum. `next` is the first of the group's codes and
  // becomes that of the next group's.
  void add_units(const SparseSpectrum& from, std::size_t group, float sign, std::size_t& next) {
    const std::size_t words = group_.size() / kFloatsPerWord;
    const auto bitmap = std::span(from.bitmap).subspan(group * words, words);
    const std::size_t count = 2 * kernels::count_units(bitmap);
    kernels::dequantize(from.format, std::span(from.codes).subspan(next, count),
                        std::span(values_).first(count));
    next += count;
    const float* value = values_.data();
    kernels::for_units(bitmap, [&](std::size_t unit) {
      const std::size_t at = kernels::place_of_unit(unit);
      group_[at] += sign * value[0];
      group_[at + kernels::kBlockLanes] += sign * value[1];
      value += 2;
    });
  }

  void keep_what_was_not_sent() {
    if (!options_.feedback) return;
    std::size_t next = 0;
    for (std::size_t group = 0; group < blocks_.groups(); ++group) {
      std::fill(group_.begin(), group_.end(), 0.0f);
      add_units(own_, group, -1, next);
      blocks_.from_spectrum(group, group_, [&](std::size_t offset, std::span<const float> sent) {
        kernels::add(std::span(residual_).subspan(offset, sent.size()), sent);
      });
    }
  }

  // The spectra of all ranks are added in rank order; their sum is transformed once.
  void decode(std::span<float> mean, int world) {
    const float share = 1.0f / static_cast<float>(world);
    std::vector<std::size_t> next(ranks_.size());
    for (std::size_t group = 0; group < blocks_.groups(); ++group) {
      std::fill(group_.begin(), group_.end(), 0.0f);
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        add_units(ranks_[rank], group, 1, next[rank]);
      }
      blocks_.from_spectrum(group, group_, [&](std::size_t offset, std::span<float> sum) {
        kernels::scale(sum, share);
        std::copy(sum.begin(), sum.end(), mean.begin() + static_cast<std::ptrdiff_t>(offset));
      });
    }
  }

  // Every rank has everybody's share of kept energy, so all come to the same theta.
  void report(Exchange& exchange, double theta) {
    double kept = 0;
    for (const auto& rank : ranks_) kept += rank.kept_energy;
    kept /= static_cast<double>(ranks_.size());
    if (options_.control) options_.control->update(kept);
    if (elements_ == 0) return;
    exchange.statistics["theta"] = theta;
    exchange.statistics["kept_energy"] = kept;
    exchange.statistics["mantissa"] = own_.format.mantissa;
  }

  FftOptions options_;
  std::size_t elements_;
  FftBlocks blocks_;
  std::vector<float> residual_;
  kernels::AlignedFloats group_;  // the spectrum of one group
  std::vector<float> values_;     // of the kept units of one group
  kernels::UnitSelector selector_;
  kernels::AlignedFloats sample_;  // spectra of some groups, from which the threshold is guessed
  std::vector<float> format_sample_;
  SparseSpectrum own_;
  std::vector<SparseSpectrum> ranks_;
  std::vector<std::byte> payload_;
};

FftOptions read_options(const Options& given, const BucketLayout& layout) {
  FftOptions options;
  options.bits = static_cast<int>(given.integer("bits"));
  if (given.text("mantissa") != "auto") {
    options.mantissa = static_cast<int>(given.integer("mantissa"));
    if (*options.mantissa >= options.bits) {
      throw Error(ErrorCode::bad_spec, "fft: mantissa must be smaller than bits");
    }
  }
  options.block_length = given.text("block") == "auto"
                             ? best_block_length(layout)
                             : static_cast<std::size_t>(given.integer("block"));
  options.transform =
      given.text("transform") == "dct" ? kernels::Transform::dct : kernels::Transform::fft;
  options.feedback = given.on("feedback");
  options.schedule.kind = ThetaSchedule::kind_named(given.text("schedule"));
  options.schedule.end = given.number("theta_end");
  options.schedule.steps = static_cast<std::uint64_t>(given.integer("steps"));
  if (given.text("theta") == "auto") {
    options.control.emplace(options.schedule.start, given.number("energy"));
  } else {
    options.schedule.start = given.number("theta");
  }
  return options;
}

}  // namespace

MethodInfo fft_info() {
  MethodInfo info;
  info.name = "fft";
  info.wire_id = 9;
  info.algebra = Algebra::gather;
  info.summary = "the strongest frequencies of blocks of the gradient, as floats of a few bits";
  info.paper =
      "Wang et al. 2020, FFT-based Gradient Sparsification for the Distributed Training of Deep "
      "Neural Networks, arXiv 1811.08596";
  auto theta = OptionInfo::number("theta", 0.85, 0, 0.9999,
                                  "share of the spectrum that is dropped; auto: 0.85, and less "
                                  "while what is kept has too little energy");
  theta.choices = {"auto"};
  auto mantissa = OptionInfo::integer(
      "mantissa", 5, 0, 15, "mantissa bits of a coefficient; auto: the best in each step");
  mantissa.choices = {"auto"};
  mantissa.default_value = "auto";
  info.options = {
      theta,
      OptionInfo::choice("schedule", "constant", {"constant", "linear", "cosine", "step"},
                         "how theta goes to theta_end"),
      OptionInfo::number("theta_end", 0, 0, 0.9999, "theta after so many steps"),
      OptionInfo::integer("steps", 10000, 1, 1'000'000'000, "steps of the schedule"),
      OptionInfo::number("energy", 0.3, 0, 1,
                         "theta=auto: the least share of energy that must be kept"),
      OptionInfo::integer("bits", 10, kernels::kLeastRangeBits, kernels::kMostRangeBits,
                          "bits of a coefficient"),
      mantissa,
      OptionInfo::choice(
          "block", "auto",
          {"auto", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"},
          "floats that are transformed together"),
      OptionInfo::choice("transform", "fft", {"fft", "dct"}, "Fourier or cosine transform"),
      OptionInfo::on_off("feedback", true,
                         "keep what is not sent and add it to the next gradient; off: forget it"),
  };
  info.make = [](const Options& options, const MethodSetup& setup) {
    if (setup.layout.elements > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::bad_input, "fft takes buckets of fewer than 2^32 elements");
    }
    return std::make_unique<Fft>(setup, read_options(options, setup.layout));
  };
  return info;
}

}  // namespace thinreduce

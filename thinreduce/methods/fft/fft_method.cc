#include "thinreduce/methods/fft/fft_method.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {

FftMethod::FftMethod(const MethodSetup& setup, const FftOptions& options)
    : options_(options),
      elements_(setup.layout.elements),
      blocks_(setup.layout, options.block_length, options.transform),
      selected_(options.bits, options.mantissa, group_words()),
      residual_(blocks_, selected_, elements_, options.feedback) {}

void FftMethod::reduce(const Bucket& bucket, Exchange& exchange) {
  ensure(bucket.values.size() == elements_, "fft: the bucket must keep its size",
         bucket.values.size(), elements_);
  const double theta =
      options_.control ? options_.control->theta() : options_.schedule.at(exchange.id().step);
  double kept = 1;
  try {
    const std::size_t threads = exchange.workers.threads();
    blocks_.set_threads(threads);
    selected_.set_threads(threads);
    residual_.set_threads(threads);
    kept = reduce_spectrum(bucket, exchange, theta);
  } catch (...) {
    residual_.keep_all(bucket.values);
    throw;
  }
  residual_.settle(selected_);
  // Every rank knows the same kept fraction, so all compute the same theta.
  if (options_.control) options_.control->update(kept);
  if (elements_ == 0) return;
  exchange.statistics["theta"] = theta;
  exchange.statistics["kept_energy"] = kept;
  exchange.statistics["mantissa"] = selected_.head().format.mantissa;
}

void FftMethod::add_residual(std::span<float> values) {
  residual_.add_to(values);
}

void FftMethod::state(Archive& archive) {
  residual_.state(archive);
  if (options_.control) {
    double theta = options_.control->theta();
    archive.real("theta", theta, {0, options_.control->max_theta()});
    options_.control->set_theta(theta);
  }
}

std::uint64_t FftMethod::fingerprint() const {
  if (!options_.control) return 0;
  const double theta = options_.control->theta();
  return checksum(std::as_bytes(std::span(&theta, 1)));
}

double FftMethod::pairs_of(Groups groups) const {
  const auto blocks_before = [&](std::size_t group) {
    return std::min(group * kernels::kBlockLanes, blocks_.blocks());
  };
  const std::size_t blocks = blocks_before(groups.end) - blocks_before(groups.begin);
  return static_cast<double>(blocks * blocks_.block_length()) / 2;
}

void FftMethod::select(std::span<const float> gradient, double keep, Groups skip, Workers workers) {
  const Groups all{0, blocks_.groups()};
  const SelectedPairs::Source source{.groups = all.size(),
                                     .pairs = pairs_of(all),
                                     .skip = skip,
                                     .spectrum_of = [&](std::size_t group, std::size_t thread) {
                                       return residual_.take_in(group, gradient, thread);
                                     }};
  const double pairs = source.pairs - pairs_of(skip);
  selected_.select(source, static_cast<std::size_t>(std::ceil(keep * pairs)), workers);
}

void FftMethod::write_mean(Groups run, std::span<const float> spectrum, int world,
                           std::span<float> values, std::size_t thread) {
  const float share = 1.0f / static_cast<float>(world);
  residual_.delivered(run);
  for (std::size_t group = run.begin; group < run.end; ++group) {
    blocks_.write_scaled(group,
                         spectrum.subspan((group - run.begin) * group_floats(), group_floats()),
                         share, values, thread);
  }
}

}  // namespace thinreduce

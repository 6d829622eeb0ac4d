#include "thinreduce/methods/fft/fft_method.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {

FftMethod::FftMethod(const MethodSetup& setup, const FftOptions& options)
    : options_(options),
      elements_(setup.layout.elements),
      blocks_(setup.layout, options.block_length, options.transform),
      selected_(options.bits, options.mantissa, group_words()) {
  if (!options_.feedback) return;
  residual_.resize(elements_);
}

void FftMethod::reduce(const Bucket& bucket, Exchange& exchange) {
  ensure(bucket.values.size() == elements_, "fft: the bucket must keep its size",
         bucket.values.size(), elements_);
  ensure(!options_.feedback || residual_.size() == elements_,
         "fft: each element must have a residual", residual_.size(), elements_);
  const std::size_t threads = exchange.workers.threads();
  blocks_.set_threads(threads);
  selected_.set_threads(threads);
  while (options_.feedback && sent_.size() < threads) {
    sent_.emplace_back(run_groups() * group_floats());
  }
  const double theta =
      options_.control ? options_.control->theta() : options_.schedule.at(exchange.id().step);
  const double kept = reduce_spectrum(bucket, exchange, theta);
  // Every rank knows the same kept fraction, so all compute the same theta.
  if (options_.control) options_.control->update(kept);
  if (elements_ == 0) return;
  exchange.statistics["theta"] = theta;
  exchange.statistics["kept_energy"] = kept;
  exchange.statistics["mantissa"] = selected_.head().format.mantissa;
}

void FftMethod::add_residual(std::span<float> values) {
  if (!residual_.empty()) kernels::add(values, residual_);
}

void FftMethod::state(Archive& archive) {
  if (options_.feedback) archive.summed("residual", residual_);
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

void FftMethod::add_gradient(Groups groups, std::span<const float> gradient) {
  for (std::size_t group = groups.begin; group < groups.end; ++group) {
    blocks_.for_runs(group, [&](std::size_t offset, std::size_t, std::size_t length) {
      kernels::add(residual().subspan(offset, length), gradient.subspan(offset, length));
    });
  }
}

void FftMethod::add_sent(Groups groups, float sign, std::size_t thread) {
  for_runs(groups, [&](Groups run) {
    const auto sent = std::span<float>(sent_[thread]).first(run.size() * group_floats());
    std::fill(sent.begin(), sent.end(), 0.0f);
    selected_.add_sent(run, sign, sent, thread);
    for (std::size_t group = run.begin; group < run.end; ++group) {
      blocks_.from_spectrum(
          group, sent.subspan((group - run.begin) * group_floats(), group_floats()),
          [&](std::size_t offset, std::span<const float> floats) {
            kernels::add(residual().subspan(offset, floats.size()), floats);
          },
          thread);
    }
  });
}

void FftMethod::write_mean(Groups run, std::span<const float> spectrum, int world,
                           std::span<float> values, std::size_t thread) {
  const float share = 1.0f / static_cast<float>(world);
  for (std::size_t group = run.begin; group < run.end; ++group) {
    blocks_.write_scaled(group,
                         spectrum.subspan((group - run.begin) * group_floats(), group_floats()),
                         share, values, thread);
  }
}

}  // namespace thinreduce

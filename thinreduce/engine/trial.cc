#include "thinreduce/engine/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {

double relative_error(std::span<const float> mean, std::span<const float> exact) {
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(mean[i]) - static_cast<double>(exact[i]);
    error += difference * difference;
    energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  if (error == 0) return 0;
  return energy > 0 ? error / energy : 1e30;
}

void agree_on_figures(Exchange& exchange, std::span<TrialFigures* const> figures) {
  constexpr std::size_t kFigures = 4;
  constexpr double kMaxFigure = 1e18;  // seconds or bytes; sums and ratios of such stay finite
  std::vector<double> own;
  for (const TrialFigures* one : figures) {
    own.insert(own.end(), {one->seconds, one->encode, one->decode, one->bytes});
  }
  const auto bytes = std::as_bytes(std::span(own));
  std::vector<double> most(own.size(), 0.0);
  gather(exchange, bytes, bytes.size(), [&](int rank, std::span<const std::byte> got) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      const bool complete = got.size() == bytes.size();
      const double value = complete ? load_value<double>(got, i * sizeof(double)) : -1;
      if (!(value >= 0 && value <= kMaxFigure)) {
        throw Error(ErrorCode::bad_frame,
                    fmt::format("rank {} sent invalid figures of a trial: {} of {} bytes, figure "
                                "{} is {}; they must be 0 to {:g}",
                                rank, got.size(), bytes.size(), i, value, kMaxFigure));
      }
      most[i] = std::max(most[i], value);
    }
  });
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i]->seconds = most[kFigures * i];
    figures[i]->encode = most[kFigures * i + 1];
    figures[i]->decode = most[kFigures * i + 2];
    figures[i]->bytes = most[kFigures * i + 3];
  }
}

Trial::Trial(const Setup& setup, const Spec& spec, std::span<const float> sample)
    : setup_(setup), spec_(spec), sample_(sample) {
  setup_.id.method = spec.info->wire_id;
  setup_.id.elements = sample.size();
}

const TrialFigures& Trial::run(int times) {
  for (int run = 0; run < times; ++run) {
    const TrialFigures figures = run_once();
    const TrialFigures before = std::exchange(shortest_, figures);
    if (runs_++ == 0) continue;
    shortest_.seconds = std::min(before.seconds, figures.seconds);
    shortest_.encode = std::min(before.encode, figures.encode);
    shortest_.decode = std::min(before.decode, figures.decode);
  }
  return shortest_;
}

TrialFigures Trial::run_once() {
  Exchange exchange = setup_.make_exchange(setup_.id);
  exchange.stands_for = setup_.times;
  BucketLayout layout;
  layout.id = setup_.id.bucket;
  layout.elements = sample_.size();
  if (!method_) {
    method_ = spec_.make({.layout = layout,
                          .rank = exchange.rank(),
                          .world = exchange.size(),
                          .seed = setup_.seed,
                          .stands_for = setup_.times});
  }
  Transport& transport = exchange.transport();
  mean_.assign(sample_.begin(), sample_.end());
  const Traffic before = transport.total_traffic();
  const auto start = transport.now();
  method_->reduce(Bucket{layout, mean_, {}}, exchange);
  TrialFigures figures;
  figures.seconds = Seconds(transport.now() - start).count();
  figures.encode = exchange.stages.encode;
  figures.decode = exchange.stages.decode;
  figures.bytes = static_cast<double>(transport.total_traffic().bytes_sent - before.bytes_sent);
  ++setup_.id.step;
  if (first_mean_.empty()) first_mean_ = mean_;
  return figures;
}

}  // namespace thinreduce

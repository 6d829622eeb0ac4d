// `thinreduce bench codec --gradients`: measures a method on the recorded gradients of a training.
// All recorded ranks reduce together as threads, step after step, so that the error is against the
// true mean and methods that learn can learn.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "apps/commands.h"
#include "apps/distortion.h"
#include "apps/gradients.h"
#include "apps/terminal.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Sum {
  double result = 0;
  double truth = 0;
};

// One rank: its session and the values of the current bucket.
struct Rank {
  std::unique_ptr<Session> session;
  std::vector<BucketHandle> buckets;
  std::vector<float> values;
};

class GradientBench {
 public:
  GradientBench(const RecordedGradients& recorded, const std::string& spec, int threads)
      : recorded_(recorded), spec_(Spec::parse(spec)) {
    auto transports = connect_threads(recorded.ranks());
    ranks_.resize(transports.size());
    // The constructor of a session waits for the other ranks.
    on_all_ranks([&](std::size_t rank) {
      ranks_[rank].session = std::make_unique<Session>(std::move(transports[rank]),
                                                       SessionOptions{.spec = spec,
                                                                      .check_replicas_every = 0,
                                                                      .threads = threads,
                                                                      .momentum_inside_ok = true});
      for (const auto& layout : recorded.layouts()) {
        ranks_[rank].buckets.push_back(ranks_[rank].session->add_bucket(layout));
      }
    });
    for (const auto& layout : recorded.layouts()) {
      tensors_.emplace_back(layout.tensors.size());
      sums_.emplace_back(layout.elements);
    }
  }

  Json run(bool quiet) {
    const auto& steps = recorded_.steps();
    Progress progress(spec_.full_text(), steps.size(), quiet);
    std::vector<double> errors;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      Report step;
      Distortion total;
      for (std::size_t b = 0; b < recorded_.layouts().size(); ++b) {
        total.add(reduce(steps[i], b, i >= first_measured(), step));
      }
      if (i >= first_measured()) {
        errors.push_back(total.normalised());
        wire_bytes_ += step.payload_bytes;
      }
      // The first step touches memory for the first time.
      if (i > 0 || steps.size() == 1) {
        encode_.push_back(step.stages.encode);
        decode_.push_back(step.stages.decode);
      }
      progress.advance();
    }
    return describe(std::accumulate(errors.begin(), errors.end(), 0.0) /
                    static_cast<double>(errors.size()));
  }

 private:
  // Only the second half of the steps counts: methods may learn during the first.
  [[nodiscard]] std::size_t first_measured() const { return recorded_.steps().size() / 2; }

  // Returns how many of the measured steps the method still reduced uncompressed.
  [[nodiscard]] std::uint64_t measured_in_warmup() const {
    const std::uint64_t warmup = spec_.info->cycle(spec_.options).start;
    return std::clamp<std::uint64_t>(warmup, first_measured(), recorded_.steps().size()) -
           first_measured();
  }

  template <typename Work>
  void on_all_ranks(Work&& work) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> thrown(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          work(rank);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& one : thrown) {
      if (one) std::rethrow_exception(one);
    }
  }

  // Reduces bucket `b` of a step and returns its distortion. Adds rank 0's stage times to `report`,
  // and the mean payload of the ranks, since some may send less than others.
  Distortion reduce(std::uint64_t step, std::size_t b, bool counts, Report& report) {
    const BucketLayout& layout = recorded_.layouts()[b];
    mean_.assign(layout.elements, 0.0);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      auto& values = ranks_[rank].values;
      values.resize(layout.elements);
      recorded_.read(step, static_cast<int>(rank), layout, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        mean_[i] += static_cast<double>(values[i]) / static_cast<double>(ranks_.size());
      }
    }
    time_memcpy(ranks_[0].values);
    std::vector<Report> done(ranks_.size());
    on_all_ranks([&](std::size_t rank) {
      Rank& own = ranks_[rank];
      done[rank] = own.session->submit(own.buckets[b], own.values).get();
    });
    std::uint64_t payloads = 0;
    for (const Report& one : done) payloads += one.payload_bytes;
    done[0].payload_bytes = payloads / done.size();
    report += done[0];
    for (const Rank& rank : ranks_) {
      if (layout.elements > 0 && std::memcmp(rank.values.data(), ranks_[0].values.data(),
                                             layout.elements * sizeof(float)) != 0) {
        throw Error(ErrorCode::mismatch,
                    fmt::format("{}, step {}, bucket {}: rank {} and rank 0 hold different bits "
                                "after the reduce; please report this as a bug",
                                spec_.full_text(), step, layout.id, &rank - ranks_.data()));
      }
    }
    Distortion bucket;
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const Tensor& tensor = layout.tensors[t];
      Distortion one;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        one.add(ranks_[0].values[i], mean_[i]);
        sums_[b][i].result += ranks_[0].values[i];
        sums_[b][i].truth += mean_[i];
      }
      if (counts) tensors_[b][t].add(one);
      bucket.add(one);
    }
    return bucket;
  }

  void time_memcpy(const std::vector<float>& source) {
    copy_.resize(source.size());
    const auto start = Clock::now();
    std::memcpy(copy_.data(), source.data(), source.size() * sizeof(float));
    memcpy_seconds_ += Seconds(Clock::now() - start).count();
    memcpy_bytes_ += static_cast<double>(source.size() * sizeof(float));
  }

  // Returns the error of the sum over all steps, in which late elements are no error and noise
  // averages out.
  [[nodiscard]] double sum_nmse() const {
    Distortion total;
    for (const auto& bucket : sums_) {
      for (const Sum& one : bucket) total.add(one.result, one.truth);
    }
    return total.normalised();
  }

  [[nodiscard]] Json describe(double nmse) const {
    const auto bytes = static_cast<double>(recorded_.elements() * sizeof(float));
    const auto speed = [&](const std::vector<double>& seconds) {
      const double typical = median(seconds);
      return typical < 1e-6 ? Json(nullptr) : Json(bytes / typical / 1e9);
    };
    const std::size_t measured = recorded_.steps().size() - first_measured();
    const auto wire = static_cast<double>(wire_bytes_) / static_cast<double>(measured);
    auto tensors = Json::array();
    for (std::size_t b = 0; b < tensors_.size(); ++b) {
      for (std::size_t t = 0; t < tensors_[b].size(); ++t) {
        const Tensor& tensor = recorded_.layouts()[b].tensors[t];
        tensors.push_back({{"name", tensor.name},
                           {"shape", tensor.shape},
                           {"nmse", tensors_[b][t].normalised()}});
      }
    }
    return {{"method", spec_.full_text()},
            {"floats", recorded_.elements()},
            {"ranks", recorded_.ranks()},
            {"steps", recorded_.steps().size()},
            {"measured_steps", measured},
            {"measured_in_warmup", measured_in_warmup()},
            {"wire_bytes", wire},
            {"ratio", wire > 0 ? bytes / wire : 0.0},
            {"encode_gbps", speed(encode_)},
            {"decode_gbps", speed(decode_)},
            {"memcpy_gbps", memcpy_bytes_ / memcpy_seconds_ / 1e9},
            {"nmse", nmse},
            {"sum_nmse", sum_nmse()},
            {"simd", kernels::active_target()},
            {"tensors", tensors}};
  }

  const RecordedGradients& recorded_;
  Spec spec_;
  std::vector<Rank> ranks_;
  std::vector<double> mean_;  // true mean of the current bucket
  std::vector<std::vector<Distortion>> tensors_;
  std::vector<std::vector<Sum>> sums_;  // over the steps so far
  std::vector<double> encode_;          // seconds per step, rank 0
  std::vector<double> decode_;
  std::uint64_t wire_bytes_ = 0;  // of the measured steps
  std::vector<float> copy_;
  double memcpy_seconds_ = 0;
  double memcpy_bytes_ = 0;
};

}  // namespace

Json bench_gradients(const RecordedGradients& recorded, const std::string& spec, int threads,
                     bool quiet) {
  return GradientBench(recorded, spec, threads).run(quiet);
}

}  // namespace thinreduce::apps

#include "apps/train/replica.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <future>

#include "apps/gather_values.h"
#include "apps/train/evaluate.h"
#include "apps/train/feed.h"
#include "apps/train/gradient_buckets.h"
#include "apps/train/local_rounds.h"
#include "apps/train/models.h"
#include "apps/train/network_state.h"
#include "apps/train/optimizer.h"
#include "apps/train/second_moment.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {
namespace {

// Bucket 0 carries the status; the fragments of local steps and the gradient's buckets follow.
constexpr std::uint32_t kStatusBucket = 0;
// Positions in the status, of which all ranks get the mean. A loss that is not finite travels as a
// 1 in `diverged`, because the engine refuses to reduce it.
enum Status : std::size_t { kLoss, kStop, kSave, kMeet, kDiverged, kStatusSize };
constexpr std::uint32_t kFirstBucket = 1;

SessionOptions session_options(const TrainOptions& options) {
  return {.spec = options.method,
          .timeout = options.launch.timeout,
          .patience = options.launch.patience,
          .min_elements = options.min_elements,
          .warmup_steps = options.warmup_steps,
          .check_replicas_every = 0,  // check_replicas() compares the parameters themselves
          .guard = guard_of(options.guard),
          .guard_factor = options.guard_factor,
          .threads = *options.threads,
          .seed = options.seed,
          .momentum_inside_ok = true};  // settle() has turned the optimizer's momentum off
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return Seconds(to - from).count();
}

}  // namespace

class Replica::Torch {
 public:
  Torch(const TrainOptions& options, const Dataset& data, std::shared_ptr<Transport> transport)
      : options_(options),
        data_(data),
        transport_(std::move(transport)),
        feed_(make_feed(options, data, transport_->rank(), transport_->size())) {
    at::set_num_threads(*options.threads);
    network_ = make_network(options.model, options.seed);
    optimizer_ = make_optimizer(options, *network_);
    make_buckets();
    if (Spec::parse(options.method).info->second_moment && options.local_steps == 0) {
      moments_ = std::make_unique<SecondMoments>(*network_, buckets_->layouts());
    }
    session_ = std::make_unique<Session>(transport_, session_options(options));
    // Reduced by fp32: a method with momentum would apply it to these values, too.
    handles_.push_back(session_->add_bucket(
        {.id = kStatusBucket, .elements = kStatusSize, .tensors = {}, .spec = "fp32"}));
    if (options.local_steps > 0) {
      LocalStepsOptions local = local_steps_of(options);
      local.first_id = kFirstBucket;
      rounds_ = std::make_unique<LocalRounds>(*session_, local, *network_);
      if (options.local_start == 0) return;
    }
    for (BucketLayout layout : buckets_->layouts()) {
      if (rounds_) layout.spec = options.start_method;
      handles_.push_back(session_->add_bucket(std::move(layout)));
    }
  }

  StepResult step(const StepSettings& settings) {
    try {
      if (!rounds_ || settings.step < options_.local_start) return try_step(settings);
      if (!rounds_->begun()) rounds_->begin();
      return try_local_step(settings);
    } catch (const Error& error) {
      // Other bad input, such as a bucket that the method can't reduce, is no divergence.
      if (!error.is_nonfinite() && !error.is_overflow()) throw;
      throw Error(ErrorCode::bad_input, explain_divergence(settings, error.what()));
    }
  }

  Reconfiguration reconfigure(std::shared_ptr<Transport> transport) {
    const Reconfiguration change = session_->reconfigure(transport);
    transport_ = std::move(transport);
    feed_ = make_feed(options_, data_, transport_->rank(), transport_->size());
    if (unapplied_ && !change.repeat) apply(*unapplied_);
    unapplied_.reset();
    if (change.joined.empty()) return change;
    std::vector<std::byte> message;
    if (transport_->rank() == change.source) message = save();
    session_->broadcast(change.source, message);
    if (std::ranges::count(change.joined, transport_->rank()) > 0) load(message);
    return change;
  }

  Evaluation evaluate(std::size_t samples) {
    broadcast_buffers(*network_, *transport_, options_.launch.timeout);
    if (is_local()) rounds_->show_shared();
    const Evaluation result =
        train::evaluate(*network_, *feed_, *transport_,
                        {.samples = samples,
                         .is_language_model = find_model(options_.model).is_language_model(),
                         .timeout = options_.launch.timeout});
    if (is_local()) rounds_->show_own();
    return result;
  }

  void check_replicas(std::uint64_t step) {
    const auto all = apps::gather_values(*transport_, options_.launch.timeout, shared_checksum());
    std::vector<std::size_t> drifted;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] != all[0]) drifted.push_back(rank);
    }
    if (drifted.empty()) return;
    throw Error(ErrorCode::mismatch,
                fmt::format("after step {} the parameters of rank {} differ from those of rank 0; "
                            "the ranks must run the same build of thinreduce and libtorch",
                            step, fmt::join(drifted, ", ")));
  }

  [[nodiscard]] std::vector<std::byte> save() const { return save_network(*network_, *optimizer_); }

  void load(std::span<const std::byte> bytes) {
    load_network(bytes, *network_, *optimizer_);
    // Loading replaces the parameters' tensors, so their gradients need new buckets.
    buckets_ = nullptr;
    make_buckets();
  }

  [[nodiscard]] std::vector<std::byte> save_local_steps() { return rounds_->save(); }
  void load_local_steps(std::span<const std::byte> bytes) { rounds_->load(bytes); }

  Session& session() { return *session_; }
  const GradientBuckets& buckets() const { return *buckets_; }
  const Feed& feed() const { return *feed_; }

 private:
  // Returns whether the parameters of the ranks may differ.
  [[nodiscard]] bool is_local() const { return rounds_ && rounds_->begun(); }

  [[nodiscard]] std::uint64_t shared_checksum() const {
    return is_local() ? rounds_->shared_checksum() : parameters_checksum(*network_);
  }

  void make_buckets() {
    GradientBuckets::WeightDecay decay;
    if (decays_before_momentum(options_)) {
      decay = [this](const torch::Tensor& parameter) {
        return weight_decay_of(options_, parameter);
      };
    }
    buckets_ = std::make_unique<GradientBuckets>(*network_, options_.bucket_floats,
                                                 first_gradient_bucket(), decay);
  }
  // The fragments of local steps come before gradients that are exchanged.
  [[nodiscard]] std::uint32_t first_gradient_bucket() const {
    const std::size_t fragments = options_.local_start > 0 ? options_.fragments : 0;
    return kFirstBucket + static_cast<std::uint32_t>(fragments);
  }
  [[nodiscard]] const BucketHandle& handle_of(const BucketLayout& layout) const {
    return handles_[1 + layout.id - first_gradient_bucket()];
  }
  // The learning rate is one possible cause; the method is another, which a run with fp32 rules
  // out.
  [[nodiscard]] std::string explain_divergence(const StepSettings& settings,
                                               const std::string& what) const {
    const std::string rate =
        fmt::format("lower --learning-rate (its peak is {}, in this step it is {:.3g})",
                    *options_.learning_rate, settings.learning_rate);
    const bool starting = settings.step < options_.local_start;
    const std::string& method = starting ? options_.start_method : options_.method;
    const std::string text = fmt::format("the training diverged: {} at step {} with method {}; ",
                                         what, settings.step + 1, method);
    if (Spec::parse(method).name() == "fp32") return text + rate + " or check the data";
    return text + fmt::format(
                      "run the same command with {} fp32 to find the cause: if that "
                      "diverges too, {}; if it does not, change the method's options or "
                      "the method",
                      starting ? "--start-method" : "--method", rate);
  }

  void apply(double learning_rate) {
    set_learning_rate(*optimizer_, learning_rate);
    optimizer_->step();
  }

  StepResult try_step(const StepSettings& settings) {
    if (options_.elastic) session_->begin_step();
    const auto sent_before = transport_->total_traffic().bytes_sent;
    const auto start = Clock::now();
    const Samples& samples = feed_->training(settings.step);
    if (moments_) moments_->begin();
    const auto loss =
        mean_loss(network_->forward(samples.inputs), samples.targets, *options_.label_smoothing);
    // Submitted before backward, so that its latency is hidden.
    const auto own_loss = loss.item<float>();
    const bool diverged = !std::isfinite(own_loss);
    std::array<float, kStatusSize> status{};
    status[kLoss] = diverged ? 0.0F : own_loss;
    status[kStop] = settings.stop ? 1.0F : 0.0F;
    status[kSave] = settings.save ? 1.0F : 0.0F;
    status[kMeet] = settings.meet ? 1.0F : 0.0F;
    status[kDiverged] = diverged ? 1.0F : 0.0F;
    std::vector<std::future<Report>> pending;
    pending.push_back(session_->submit(handles_[kStatusBucket], status));
    buckets_->begin([&](const BucketLayout& layout, std::span<float> values) {
      if (settings.record != nullptr) settings.record->write(settings.step + 1, layout, values);
      pending.push_back(session_->submit(
          handle_of(layout), values, moments_ ? moments_->of(layout) : std::span<const float>()));
    });
    std::exception_ptr failed;
    try {
      loss.backward();
      buckets_->end();
    } catch (...) {
      failed = std::current_exception();
    }
    const auto computed = Clock::now();
    // All submitted buckets must finish before their memory is freed.
    for (auto& bucket : pending) {
      try {
        bucket.get();
      } catch (...) {
        if (!failed) failed = std::current_exception();
      }
    }
    // A loss that is NaN makes gradients NaN; the loss is the clearer of the two errors.
    if (status[kDiverged] > 0) throw Error::nonfinite("the loss is NaN or infinite");
    if (failed) std::rethrow_exception(failed);
    StepResult result;
    result.report = session_->finish_step();
    result.meet = status[kMeet] > 0;
    if (options_.elastic) {
      unapplied_ = settings.learning_rate;
      const std::vector<int> leaving = session_->commit_step(settings.leave);
      unapplied_.reset();
      result.meet = !leaving.empty() || result.meet;
      // Otherwise no rank would be left to save the run.
      result.stop = static_cast<int>(leaving.size()) == transport_->size();
    }
    const auto exchanged = Clock::now();
    apply(settings.learning_rate);
    const auto end = Clock::now();
    result.loss = status[kLoss];
    result.stop = status[kStop] > 0 || result.stop;
    result.save = status[kSave] > 0;
    result.step_seconds = seconds_between(start, end);
    result.exposed_seconds = seconds_between(computed, exchanged);
    result.compute_seconds = result.step_seconds - result.exposed_seconds;
    result.bytes_sent = transport_->total_traffic().bytes_sent - sent_before;
    return result;
  }

  // A step without an exchange of gradients. The status travels at the end of a round only, because
  // the ranks must not wait for one another in between.
  StepResult try_local_step(const StepSettings& settings) {
    const auto sent_before = transport_->total_traffic().bytes_sent;
    const auto start = Clock::now();
    const Samples& samples = feed_->training(settings.step);
    const auto loss =
        mean_loss(network_->forward(samples.inputs), samples.targets, *options_.label_smoothing);
    StepResult result;
    result.loss = loss.item<double>();
    diverged_ = diverged_ || !std::isfinite(result.loss);
    buckets_->begin([&](const BucketLayout& layout, std::span<float> values) {
      if (settings.record != nullptr) settings.record->write(settings.step + 1, layout, values);
    });
    loss.backward();
    buckets_->end();
    set_learning_rate(*optimizer_, settings.learning_rate);
    optimizer_->step();
    const auto computed = Clock::now();
    exchange_round(settings, result);
    const auto end = Clock::now();
    result.step_seconds = seconds_between(start, end);
    result.exposed_seconds = seconds_between(computed, end);
    result.compute_seconds = result.step_seconds - result.exposed_seconds;
    result.bytes_sent = transport_->total_traffic().bytes_sent - sent_before;
    return result;
  }

  void exchange_round(const StepSettings& settings, StepResult& result) {
    const auto local = settings.step + 1 - options_.local_start;
    const bool ends_round = settings.last || local % options_.local_steps == 0;
    std::array<float, kStatusSize> status{};
    std::future<Report> told;
    if (ends_round) {
      status[kStop] = settings.stop ? 1.0F : 0.0F;
      status[kSave] = settings.save ? 1.0F : 0.0F;
      status[kDiverged] = diverged_ ? 1.0F : 0.0F;
      told = session_->submit(handles_[kStatusBucket], status);
    }
    std::exception_ptr failed;
    try {
      rounds_->start_due();
      result.report = rounds_->apply_due();
      if (settings.last) result.report += rounds_->synchronize();
    } catch (...) {
      failed = std::current_exception();
    }
    if (ends_round) told.get();
    result.stop = status[kStop] > 0;
    result.save = status[kSave] > 0;
    // A loss that is NaN makes parameters NaN; the loss is the clearer of the two errors.
    if (status[kDiverged] > 0) throw Error::nonfinite("the loss is NaN or infinite");
    if (failed) std::rethrow_exception(failed);
  }

  TrainOptions options_;
  const Dataset& data_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Feed> feed_;
  std::shared_ptr<Network> network_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<SecondMoments> moments_;  // for methods that need them
  std::vector<BucketHandle> handles_;       // the status, and the gradient's buckets in order
  // The learning rate of a step that this rank has reduced, until all ranks have.
  std::optional<double> unapplied_;
  bool diverged_ = false;  // with local steps: whether a loss was not finite
  // Destroyed before the others, so that it finishes its buckets.
  std::unique_ptr<Session> session_;
  std::unique_ptr<LocalRounds> rounds_;  // with local steps
};

Replica::Replica(const TrainOptions& options, const Dataset& data,
                 std::shared_ptr<Transport> transport)
    : torch_(std::make_unique<Torch>(options, data, std::move(transport))) {}
Replica::~Replica() = default;

std::size_t Replica::parameters() const {
  return torch_->buckets().elements();
}
std::size_t Replica::steps_per_epoch() const {
  return torch_->feed().steps_per_epoch();
}
const std::vector<BucketLayout>& Replica::layouts() const {
  return torch_->buckets().layouts();
}
StepResult Replica::step(const StepSettings& settings) {
  return torch_->step(settings);
}
Reconfiguration Replica::reconfigure(std::shared_ptr<Transport> transport) {
  return torch_->reconfigure(std::move(transport));
}
Evaluation Replica::evaluate(std::size_t samples) {
  return torch_->evaluate(samples);
}
void Replica::check_replicas(std::uint64_t step) {
  torch_->check_replicas(step);
}
std::vector<std::byte> Replica::save() const {
  return torch_->save();
}
void Replica::load(std::span<const std::byte> bytes) {
  torch_->load(bytes);
}
std::vector<std::byte> Replica::save_local_steps() {
  return torch_->save_local_steps();
}
void Replica::load_local_steps(std::span<const std::byte> bytes) {
  torch_->load_local_steps(bytes);
}
Session& Replica::session() {
  return torch_->session();
}

}  // namespace thinreduce::train

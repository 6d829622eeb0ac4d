#include "apps/train/feed.h"

#include "apps/train/batches.h"
#include "apps/train/text_batches.h"

namespace thinreduce::train {
namespace {

template <typename Value>
std::span<Value> values(const torch::Tensor& tensor) {
  return {tensor.data_ptr<Value>(), static_cast<std::size_t>(tensor.numel())};
}

// `Source` is Batches or TextBatches, `Input` the type of its inputs.
template <typename Source, typename Input>
class SourceFeed final : public Feed {
 public:
  SourceFeed(const ModelInfo& model, std::size_t batch, Source source)
      : model_(model), source_(std::move(source)), samples_(empty_samples(model, batch)) {}

  [[nodiscard]] std::size_t steps_per_epoch() const override { return source_.steps_per_epoch(); }
  [[nodiscard]] std::size_t test_samples() const override { return source_.test_samples(); }
  const Samples& training(std::uint64_t step) override {
    source_.training(step, values<Input>(samples_.inputs), values<std::int64_t>(samples_.targets));
    return samples_;
  }
  [[nodiscard]] Samples test(std::size_t first, std::size_t count) const override {
    Samples samples = empty_samples(model_, count);
    source_.test(first, values<Input>(samples.inputs), values<std::int64_t>(samples.targets));
    return samples;
  }

 private:
  const ModelInfo& model_;
  Source source_;
  Samples samples_;
};

}  // namespace

std::unique_ptr<Feed> make_feed(const TrainOptions& options, const Dataset& data, int rank,
                                int ranks) {
  const ModelInfo& model = find_model(options.model);
  const OrderOptions order{
      .seed = options.seed, .batch = *options.batch, .rank = rank, .ranks = ranks};
  if (model.is_language_model()) {
    return std::make_unique<SourceFeed<TextBatches, std::int64_t>>(
        model, order.batch, TextBatches(data, order, model.side));
  }
  const BatchOptions batches{.order = order,
                             .side = model.side,
                             .padding = model.padding,
                             .augment = options.augment == "on"};
  return std::make_unique<SourceFeed<Batches, float>>(model, order.batch, Batches(data, batches));
}

Samples empty_samples(const ModelInfo& model, std::size_t count) {
  const auto samples = static_cast<std::int64_t>(count);
  const auto side = static_cast<std::int64_t>(model.side);
  if (model.is_language_model()) {
    return {torch::empty({samples, side}, torch::kLong),
            torch::empty({samples, side}, torch::kLong)};
  }
  const std::int64_t channels = model.data == "mnist" ? 1 : 3;
  return {torch::empty({samples, channels, side, side}), torch::empty({samples}, torch::kLong)};
}

torch::Tensor mean_loss(const torch::Tensor& scores, const torch::Tensor& targets,
                        double label_smoothing) {
  return torch::nn::functional::cross_entropy(
      scores.flatten(0, -2), targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(label_smoothing));
}

}  // namespace thinreduce::train

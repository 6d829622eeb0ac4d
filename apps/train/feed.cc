#include "apps/train/feed.h"

#include "apps/train/batches.h"
#include "apps/train/text_batches.h"

namespace thinreduce::train {
namespace {

std::span<std::int64_t> numbers(const torch::Tensor& tensor) {
  return {tensor.data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

class ImageFeed final : public Feed {
 public:
  ImageFeed(const ModelInfo& model, const Dataset& data, const BatchOptions& options)
      : model_(model),
        test_images_(data.test.count),
        batches_(data, options),
        samples_(empty_samples(model, options.order.batch)) {}

  [[nodiscard]] std::size_t steps_per_epoch() const override { return batches_.steps_per_epoch(); }
  [[nodiscard]] std::size_t test_samples() const override { return test_images_; }
  const Samples& training(std::uint64_t step) override {
    batches_.training(step, pixels(samples_.inputs), numbers(samples_.targets));
    return samples_;
  }
  [[nodiscard]] Samples test(std::size_t first, std::size_t count) const override {
    Samples samples = empty_samples(model_, count);
    batches_.test(first, pixels(samples.inputs), numbers(samples.targets));
    return samples;
  }

 private:
  static std::span<float> pixels(const torch::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
  }

  const ModelInfo& model_;
  std::size_t test_images_;
  Batches batches_;
  Samples samples_;
};

class TextFeed final : public Feed {
 public:
  TextFeed(const ModelInfo& model, const Dataset& data, const OrderOptions& options)
      : model_(model),
        batches_(data, options, model.side),
        samples_(empty_samples(model, options.batch)) {}

  [[nodiscard]] std::size_t steps_per_epoch() const override { return batches_.steps_per_epoch(); }
  [[nodiscard]] std::size_t test_samples() const override { return batches_.test_windows(); }
  const Samples& training(std::uint64_t step) override {
    batches_.training(step, numbers(samples_.inputs), numbers(samples_.targets));
    return samples_;
  }
  [[nodiscard]] Samples test(std::size_t first, std::size_t count) const override {
    Samples samples = empty_samples(model_, count);
    batches_.test(first, numbers(samples.inputs), numbers(samples.targets));
    return samples;
  }

 private:
  const ModelInfo& model_;
  TextBatches batches_;
  Samples samples_;
};

}  // namespace

std::unique_ptr<Feed> make_feed(const TrainOptions& options, const Dataset& data, int rank,
                                int ranks) {
  const ModelInfo& model = find_model(options.model);
  const OrderOptions order{
      .seed = options.seed, .batch = *options.batch, .rank = rank, .ranks = ranks};
  if (model.is_language_model()) return std::make_unique<TextFeed>(model, data, order);
  return std::make_unique<ImageFeed>(model, data,
                                     BatchOptions{.order = order,
                                                  .side = model.side,
                                                  .padding = model.padding,
                                                  .augment = options.augment == "on"});
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

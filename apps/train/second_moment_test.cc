// Compares second moments with their definition: one backward per sample, squared and summed.
#include "apps/train/second_moment.h"

#include <gtest/gtest.h>

#include "apps/train/feed.h"
#include "apps/train/gradient_buckets.h"
#include "apps/train/models.h"
#include "apps/train/watched_layers.h"

namespace thinreduce::train::second_moment_test {
namespace {

namespace nn = torch::nn;

using Moments = std::vector<torch::Tensor>;  // in the order of the parameters

void expect_near(const torch::Tensor& found, const torch::Tensor& expected,
                 const std::string& what) {
  const auto largest = expected.abs().max().item<double>();
  EXPECT_GT(largest, 0) << what;
  EXPECT_LT((found - expected).abs().max().item<double>(), 2e-5 * largest) << what;
}

// `loss(first, count)` must return the loss of samples [first, first + count), divided by the size
// of the whole batch.
template <typename Loss>
Moments brute_force(nn::Module& model, std::int64_t batch, Loss&& loss) {
  Moments sums;
  for (const auto& parameter : model.parameters()) sums.push_back(torch::zeros_like(parameter));
  for (std::int64_t z = 0; z < batch; ++z) {
    const auto gradients = torch::autograd::grad({loss(z, 1)}, model.parameters());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[i].square();
  }
  return sums;
}

// Returns the same from one backward of the whole batch.
template <typename Loss>
Moments watched(nn::Module& model, std::int64_t batch, Loss&& loss) {
  GradientBuckets buckets(model, 1000, 0);
  SecondMoments moments(model, buckets.layouts());
  std::map<std::string, torch::Tensor> found;
  for (int round = 0; round < 2; ++round) {  // the second round must not add to the first
    moments.begin();
    buckets.begin([&](const BucketLayout& layout, std::span<float> values) {
      const auto moment = moments.of(layout);
      ASSERT_EQ(moment.size(), values.size());
      for (const Tensor& tensor : layout.tensors) {
        found[tensor.name] = torch::tensor(std::vector<float>(
            moment.begin() + static_cast<long>(tensor.offset),
            moment.begin() + static_cast<long>(tensor.offset + tensor.elements())));
        found[tensor.name] = found[tensor.name].view(tensor.shape);
      }
    });
    loss(0, batch).backward();
    buckets.end();
  }
  Moments all;
  for (const auto& item : model.named_parameters()) all.push_back(found.at(item.key()));
  return all;
}

template <typename Loss>
void expect_same(nn::Module& model, std::int64_t batch, Loss&& loss) {
  const Moments expected = brute_force(model, batch, loss);
  const Moments found = watched(model, batch, loss);
  // Watched layers must also have the same gradients as libtorch's layers.
  const auto gradients = torch::autograd::grad({loss(0, batch)}, model.parameters());
  const auto parameters = model.named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // Parameters of normalisation are sent uncompressed and need none.
    if (parameters[i].key().find("norm") == std::string::npos) {
      expect_near(found[i], expected[i], "second moment of " + parameters[i].key());
    }
    expect_near(parameters[i].value().grad(), gradients[i], "gradient of " + parameters[i].key());
  }
}

// Returns noise in the shape of a model's samples; characters and labels are digits.
Samples noise(const std::string& model, std::int64_t batch) {
  Samples samples = empty_samples(find_model(model), static_cast<std::size_t>(batch));
  if (samples.inputs.is_floating_point()) {
    samples.inputs.normal_();
  } else {
    samples.inputs.random_(10);
  }
  samples.targets.random_(10);
  return samples;
}

// A model of one layer.
template <typename Holder>
struct Alone final : nn::Module {
  explicit Alone(Holder given) : layer(register_module("layer", std::move(given))) {}
  Holder layer;
};

// A loss with a different derivative at every output.
template <typename Holder>
void expect_layer(Holder layer, const torch::Tensor& input) {
  Alone<Holder> model(std::move(layer));
  const std::int64_t batch = input.size(0);
  const auto weights = torch::randn_like(model.layer->forward(input));
  expect_same(model, batch, [&](std::int64_t first, std::int64_t count) {
    const auto output = model.layer->forward(input.narrow(0, first, count));
    const auto scaled = torch::sin(output) * weights.narrow(0, first, count);
    return scaled.sum() / static_cast<double>(batch);
  });
}

TEST(SecondMoment, LinearLayers) {
  torch::manual_seed(1);
  for (const bool bias : {true, false}) {
    const auto options = nn::LinearOptions(13, 7).bias(bias);
    for (const std::int64_t batch : {1, 2, 9}) {
      expect_layer(Linear(options), torch::randn({batch, 13}));
      expect_layer(Linear(options), torch::randn({batch, 5, 13}));  // with positions
      expect_layer(Linear(options), torch::randn({batch, 2, 3, 13}));
    }
  }
}

TEST(SecondMoment, ConvolutionsOfEveryKind) {
  torch::manual_seed(2);
  struct Case {
    std::int64_t kernel[2];
    std::int64_t stride[2];
    std::int64_t padding[2];
    std::int64_t dilation[2];
  };
  const Case cases[] = {
      {{3, 3}, {1, 1}, {1, 1}, {1, 1}}, {{5, 5}, {1, 1}, {2, 2}, {1, 1}},
      {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, {{3, 2}, {2, 1}, {0, 1}, {1, 1}},
      {{2, 3}, {1, 3}, {2, 0}, {1, 1}}, {{3, 3}, {1, 1}, {2, 2}, {2, 2}},
      {{2, 3}, {2, 2}, {1, 2}, {3, 1}}, {{1, 1}, {1, 1}, {0, 0}, {1, 1}},
      {{1, 1}, {2, 2}, {0, 0}, {1, 1}}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}},
      {{9, 8}, {1, 1}, {0, 0}, {1, 1}},  // one position
  };
  for (const Case& one : cases) {
    for (const std::int64_t groups : {1, 2, 6}) {
      for (const bool bias : {true, false}) {
        const auto options = nn::Conv2dOptions(6, 12, {one.kernel[0], one.kernel[1]})
                                 .stride({one.stride[0], one.stride[1]})
                                 .padding({one.padding[0], one.padding[1]})
                                 .dilation({one.dilation[0], one.dilation[1]})
                                 .groups(groups)
                                 .bias(bias);
        SCOPED_TRACE(testing::Message()
                     << one.kernel[0] << "x" << one.kernel[1] << " stride " << one.stride[0] << ","
                     << one.stride[1] << " padding " << one.padding[0] << "," << one.padding[1]
                     << " dilation " << one.dilation[0] << "," << one.dilation[1] << " groups "
                     << groups);
        expect_layer(Conv2d(options), torch::randn({4, 6, 9, 8}));
      }
    }
  }
  // Inputs that are not contiguous.
  expect_layer(Conv2d(nn::Conv2dOptions(6, 12, 3).padding(1)),
               torch::randn({3, 6, 9, 8}).contiguous(torch::MemoryFormat::ChannelsLast));
}

TEST(SecondMoment, Embeddings) {
  torch::manual_seed(4);
  for (const std::int64_t batch : {1, 2, 9}) {
    // Few rows, so that a sample looks some of them up more than once.
    expect_layer(Embedding(5, 3), torch::randint(5, {batch, 11}, torch::kLong));
    expect_layer(Embedding(5, 3), torch::arange(5).expand({batch, 5}));
  }
}

// Networks without batch norm, whose samples do not influence one another.
TEST(SecondMoment, NetworksWithTheMeanLoss) {
  for (const char* model : {"lenet", "fc-300-100", "cifarnet", "gpt"}) {
    SCOPED_TRACE(model);
    const auto network = make_network(model, 3);
    constexpr std::int64_t kBatch = 5;
    const Samples samples = noise(model, kBatch);
    expect_same(*network, kBatch, [&](std::int64_t first, std::int64_t count) {
      const auto scores = network->forward(samples.inputs.narrow(0, first, count));
      return mean_loss(scores, samples.targets.narrow(0, first, count), 0.1) *
             (static_cast<double>(count) / static_cast<double>(kBatch));
    });
  }
}

// With batch norm samples have no gradient of their own, but parts that add up to the gradient
// satisfy the Cauchy-Schwarz inequality.
class BatchNorm : public testing::TestWithParam<const char*> {};

TEST_P(BatchNorm, IsAtLeastTheSquareOfTheMeanByTheBatch) {
  const auto network = make_network(GetParam(), 3);
  constexpr std::int64_t kBatch = 6;
  GradientBuckets buckets(*network, 1'000'000, 0);
  SecondMoments moments(*network, buckets.layouts());
  moments.begin();
  std::size_t compared = 0;
  buckets.begin([&](const BucketLayout& layout, std::span<float> values) {
    const auto moment = moments.of(layout);
    for (const Tensor& tensor : layout.tensors) {
      if (tensor.shape.size() < 2) continue;  // such as the parameters of batch norm
      double least = 0, found = 0;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        // (sum of the parts)^2 <= batch * sum of their squares
        EXPECT_LE(values[i] * values[i], kBatch * moment[i] * 1.001F + 1e-12F) << tensor.name;
        least += values[i] * values[i];
        found += moment[i];
      }
      EXPECT_GT(found * kBatch, least) << tensor.name;
      ++compared;
    }
  });
  const Samples samples = noise(GetParam(), kBatch);
  mean_loss(network->forward(samples.inputs), samples.targets, 0).backward();
  buckets.end();
  EXPECT_GE(compared, 8U);
}
INSTANTIATE_TEST_SUITE_P(SecondMoment, BatchNorm, testing::Values("vgg-small", "resnet9"));

// Layers are not watched in an evaluation or after SecondMoments is destroyed.
TEST(SecondMoment, IsOnlyForTraining) {
  Alone<Conv2d> model(Conv2d(nn::Conv2dOptions(2, 3, 3)));
  GradientBuckets buckets(model, 1000, 0);
  const auto images = torch::ones({2, 2, 5, 5});
  {
    SecondMoments moments(model, buckets.layouts());
    EXPECT_NE(model.layer->forward(images).grad_fn()->name().find("WatchedConvolution"),
              std::string::npos);
    const torch::NoGradGuard no_gradients;
    EXPECT_FALSE(model.layer->forward(images).requires_grad());
  }
  EXPECT_EQ(model.layer->forward(images).grad_fn()->name(), "ConvolutionBackward0");
}

}  // namespace
}  // namespace thinreduce::train::second_moment_test

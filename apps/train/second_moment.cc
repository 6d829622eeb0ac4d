#include "apps/train/second_moment.h"

#include <algorithm>
#include <cstring>

#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

// A sample's sum of delta over everything but the channel, squared; summed over the samples.
at::Tensor bias_moment(const at::Tensor& delta) {  // (batch, positions, channels)
  return delta.sum(1).square_().sum(0);
}

// A convolution as numbers. Height first, as torch has it.
struct ConvShape {
  std::int64_t channels = 0;  // in
  std::int64_t height = 0;    // of the padded input
  std::int64_t width = 0;
  std::int64_t out_height = 0;
  std::int64_t out_width = 0;
  std::int64_t kernel[2] = {};
  std::int64_t stride[2] = {};
  std::int64_t dilation[2] = {};

  [[nodiscard]] std::int64_t rows() const { return channels * kernel[0] * kernel[1]; }
  [[nodiscard]] std::int64_t positions() const { return out_height * out_width; }
  // The columns are the input itself.
  [[nodiscard]] bool pointwise() const {
    return kernel[0] == 1 && kernel[1] == 1 && stride[0] == 1 && stride[1] == 1;
  }
};

// One sample's patches: row (channel, place in the kernel), column (position of the output).
void unfold(const float* image, const ConvShape& shape, float* columns) {
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    const float* plane = image + c * shape.height * shape.width;
    for (std::int64_t i = 0; i < shape.kernel[0]; ++i) {
      for (std::int64_t j = 0; j < shape.kernel[1]; ++j) {
        const float* from = plane + i * shape.dilation[0] * shape.width + j * shape.dilation[1];
        for (std::int64_t y = 0; y < shape.out_height; ++y) {
          const float* row = from + y * shape.stride[0] * shape.width;
          if (shape.stride[1] == 1) {
            std::memcpy(columns, row, static_cast<std::size_t>(shape.out_width) * sizeof(float));
            columns += shape.out_width;
          } else {
            for (std::int64_t x = 0; x < shape.out_width; ++x)
              *columns++ = row[x * shape.stride[1]];
          }
        }
      }
    }
  }
}

ConvShape shape_of(const at::Tensor& padded, const at::Tensor& delta, const ConvOptions& options) {
  ConvShape shape{.channels = padded.size(1),
                  .height = padded.size(2),
                  .width = padded.size(3),
                  .out_height = delta.size(2),
                  .out_width = delta.size(3)};
  for (const std::size_t axis : {0U, 1U}) {
    shape.kernel[axis] = (*options.kernel_size())[axis];
    shape.stride[axis] = (*options.stride())[axis];
    shape.dilation[axis] = (*options.dilation())[axis];
  }
  return shape;
}

at::Tensor pad(const at::Tensor& input, const ConvOptions& options) {
  ensure(c10::get_if<torch::enumtype::kZeros>(&options.padding_mode()) != nullptr,
         "second moments of convolutions padded with zeros");
  const auto* padding = c10::get_if<torch::ExpandingArray<2>>(&options.padding());
  ensure(padding != nullptr, "second moments of convolutions whose padding is a number");
  const std::int64_t down = (**padding)[0];
  const std::int64_t right = (**padding)[1];
  if (down == 0 && right == 0) return input.contiguous();
  return torch::constant_pad_nd(input, {right, right, down, down});
}

}  // namespace

void add_linear_moments(const at::Tensor& input, const at::Tensor& delta, LayerMoments moments) {
  const torch::NoGradGuard no_gradients;
  const std::int64_t batch = input.size(0);
  const auto x = input.reshape({batch, -1, input.size(-1)});
  const auto d = delta.reshape({batch, -1, delta.size(-1)});
  if (moments.bias.defined()) moments.bias.add_(bias_moment(d));
  if (x.size(1) == 1) {
    moments.weight.addmm_(d.squeeze(1).square().t(), x.squeeze(1).square());
    return;
  }
  auto part = torch::empty_like(moments.weight);
  for (std::int64_t z = 0; z < batch; ++z) {
    torch::mm_out(part, d[z].t(), x[z]);
    moments.weight.addcmul_(part, part);
  }
}

// Sample by sample, so that patches and products stay in the caches and memory stays bounded.
void add_conv_moments(const at::Tensor& input, const at::Tensor& delta, const ConvOptions& options,
                      LayerMoments moments) {
  const torch::NoGradGuard no_gradients;
  const std::int64_t batch = input.size(0);
  const std::int64_t filters = delta.size(1);
  const std::int64_t groups = options.groups();
  const auto d = delta.contiguous().view({batch, filters, -1});
  if (moments.bias.defined()) moments.bias.add_(bias_moment(d.transpose(1, 2)));
  const at::Tensor padded = pad(input, options);
  const ConvShape shape = shape_of(padded, delta, options);
  auto weight = moments.weight.view({filters, shape.rows() / groups});
  if (shape.positions() == 1 && groups == 1) {
    // As a linear layer: the patch is all that a sample has.
    auto patches = torch::empty({batch, shape.rows()});
    for (std::int64_t z = 0; z < batch; ++z) {
      unfold(padded[z].data_ptr<float>(), shape, patches[z].data_ptr<float>());
    }
    weight.addmm_(d.squeeze(2).square().t(), patches.square());
    return;
  }
  auto patches = torch::empty({shape.rows(), shape.positions()});
  auto part = torch::empty_like(weight);
  for (std::int64_t z = 0; z < batch; ++z) {
    auto columns = patches;
    if (shape.pointwise()) {
      columns = padded[z].view({shape.rows(), shape.positions()});
    } else {
      unfold(padded[z].data_ptr<float>(), shape, patches.data_ptr<float>());
    }
    for (std::int64_t group = 0; group < groups; ++group) {
      auto product = part.narrow(0, group * (filters / groups), filters / groups);
      torch::mm_out(product, d[z].narrow(0, group * (filters / groups), filters / groups),
                    columns.narrow(0, group * (shape.rows() / groups), shape.rows() / groups).t());
    }
    weight.addcmul_(part, part);
  }
}

SecondMoments::SecondMoments(torch::nn::Module& model, const std::vector<BucketLayout>& layouts)
    : model_(model) {
  for (const BucketLayout& layout : layouts) {
    auto& bucket = buckets_[layout.id];
    bucket = torch::zeros({static_cast<std::int64_t>(layout.elements)});
    for (const Tensor& tensor : layout.tensors) {
      parameters_[tensor.name] = bucket
                                     .narrow(0, static_cast<std::int64_t>(tensor.offset),
                                             static_cast<std::int64_t>(tensor.elements()))
                                     .view(tensor.shape);
    }
  }
  watch(true);
}

SecondMoments::~SecondMoments() {
  watch(false);
}

void SecondMoments::watch(bool on) {
  for (const auto& item : model_.named_modules("", /*include_self=*/false)) {
    const auto moments = [&] {
      LayerMoments found{.weight = parameters_.at(item.key() + ".weight"), .bias = {}};
      const auto bias = parameters_.find(item.key() + ".bias");
      if (bias != parameters_.end()) found.bias = bias->second;
      return found;
    };
    Watcher watcher;
    if (auto* linear = item.value()->as<LinearImpl>()) {
      if (on) {
        watcher = [into = moments()](const at::Tensor& input, const at::Tensor& delta) {
          add_linear_moments(input, delta, into);
        };
      }
      linear->watch(watcher);
    } else if (auto* conv = item.value()->as<Conv2dImpl>()) {
      if (on) {
        watcher = [into = moments(), conv](const at::Tensor& input, const at::Tensor& delta) {
          add_conv_moments(input, delta, conv->options, into);
        };
      }
      conv->watch(watcher);
    }
  }
}

void SecondMoments::begin() {
  for (auto& [id, bucket] : buckets_) bucket.zero_();
}

std::span<const float> SecondMoments::of(const BucketLayout& layout) const {
  const auto& bucket = buckets_.at(layout.id);
  return {bucket.data_ptr<float>(), static_cast<std::size_t>(bucket.numel())};
}

}  // namespace thinreduce::train

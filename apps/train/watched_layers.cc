#include "apps/train/watched_layers.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "thinreduce/ensure.h"

namespace thinreduce::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// `parts` (batch, channels) holds each sample's part of the bias gradient.
void add_bias_moments(const at::Tensor& parts, const LayerMoments& moments) {
  if (moments.bias.defined()) moments.bias.add_(parts.square().sum(0));
}

// `input` is (batch, ..., in), `delta` is (batch, ..., out). With one position per sample, the
// square of a product is the product of the squares, so one more matrix product is enough.
// Otherwise each sample's gradient is summed over its positions first.
void add_linear_moments(const at::Tensor& input, const at::Tensor& delta,
                        const LayerMoments& moments) {
  const torch::NoGradGuard no_gradients;
  const std::int64_t batch = input.size(0);
  const auto x = input.reshape({batch, -1, input.size(-1)});
  const auto d = delta.reshape({batch, -1, delta.size(-1)});
  add_bias_moments(d.sum(1), moments);
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

// A sample's gradient of a row is the sum over the positions that look the row up.
void add_embedding_moments(const at::Tensor& indices, const at::Tensor& delta,
                           const at::Tensor& moment) {
  const torch::NoGradGuard no_gradients;
  auto part = torch::empty_like(moment);
  for (std::int64_t z = 0; z < indices.size(0); ++z) {
    part.zero_().index_add_(0, indices[z], delta[z]);
    moment.addcmul_(part, part);
  }
}

// Settings of a convolution in the form that the functions of libtorch take.
struct Convolution {
  std::vector<std::int64_t> stride;
  std::vector<std::int64_t> padding;
  std::vector<std::int64_t> dilation;
  std::int64_t groups = 1;
};

template <typename Options>
Convolution settings_of(const Options& options) {
  ensure(c10::get_if<torch::enumtype::kZeros>(&options.padding_mode()) != nullptr,
         "watched convolutions are padded with zeros", options.padding_mode().index());
  const auto* padding = c10::get_if<torch::ExpandingArray<2>>(&options.padding());
  ensure(padding != nullptr, "watched convolutions have a numeric padding",
         options.padding().index());
  const auto list = [](const torch::ExpandingArray<2>& array) {
    return std::vector<std::int64_t>(array->begin(), array->end());
  };
  return {.stride = list(options.stride()),
          .padding = list(*padding),
          .dilation = list(options.dilation()),
          .groups = options.groups()};
}

struct ConvGradients {
  at::Tensor weight;
  at::Tensor bias;
};

// Adds the second moments and returns the gradients. Samples become groups of one convolution, so
// that each has a gradient of its own. Only a few samples run at a time, to bound the memory and
// keep their gradients in the L2 cache (beyond it, a sample takes twice the time), but at least
// two, because libtorch is slow for a single group.
ConvGradients conv_gradients(const at::Tensor& input, const at::Tensor& delta,
                             const Convolution& conv, const LayerMoments& moments) {
  constexpr std::int64_t kFloats = 1 << 18;
  const at::Tensor& moment = moments.weight;
  const auto x = input.contiguous();
  const std::int64_t batch = x.size(0);
  const auto max_count = std::max<std::int64_t>(kFloats / moment.numel(), 2);
  auto shape = moment.sizes().vec();
  const std::int64_t filters = shape[0];
  ConvGradients gradients{.weight = at::zeros_like(moment), .bias = {}};
  for (std::int64_t first = 0; first < batch; first += max_count) {
    const std::int64_t count = std::min(max_count, batch - first);
    shape[0] = count * filters;
    const auto as_groups = [&](const at::Tensor& samples) {
      return samples.narrow(0, first, count)
          .reshape({1, count * samples.size(1), samples.size(2), samples.size(3)});
    };
    const auto each = std::get<1>(at::convolution_backward(
        as_groups(delta), as_groups(x), at::empty(shape), c10::nullopt, conv.stride, conv.padding,
        conv.dilation, /*transposed=*/false, {0, 0}, count * conv.groups, {false, true, false}));
    for (std::int64_t z = 0; z < count; ++z) {
      const auto part = each.narrow(0, z * filters, filters);
      gradients.weight.add_(part);
      moment.addcmul_(part, part);
    }
  }
  if (moments.bias.defined()) {
    const auto parts = delta.sum({2, 3});
    gradients.bias = parts.sum(0);
    add_bias_moments(parts, moments);
  }
  return gradients;
}

// Arguments of backward other than tensors; libtorch keeps them as long as the graph.
struct ConvCall final : torch::CustomClassHolder {
  Convolution conv;
  LayerMoments moments;
};

struct WatchedConvolution : torch::autograd::Function<WatchedConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const c10::intrusive_ptr<ConvCall>& call) {
    context->save_for_backward({input, weight});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    const Convolution& conv = call->conv;
    return at::conv2d(input, weight, bias.numel() > 0 ? bias : at::Tensor(), conv.stride,
                      conv.padding, conv.dilation, conv.groups);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& deltas) {
    const torch::NoGradGuard no_gradients;
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const ConvCall&>(*capsule);
    const Convolution& conv = call.conv;
    const auto delta = deltas[0].contiguous();
    at::Tensor back;
    if (saved[0].requires_grad()) {  // false for the images
      back = std::get<0>(at::convolution_backward(
          delta, saved[0], saved[1], c10::nullopt, conv.stride, conv.padding, conv.dilation,
          /*transposed=*/false, {0, 0}, conv.groups, {true, false, false}));
    }
    const ConvGradients gradients = conv_gradients(saved[0], delta, conv, call.moments);
    return {back, gradients.weight, gradients.bias, at::Tensor()};
  }
};

}  // namespace

torch::Tensor LinearImpl::forward(const torch::Tensor& input) {
  auto output = torch::nn::LinearImpl::forward(input);
  if (moments_ && output.requires_grad()) {
    output.register_hook([moments = *moments_, seen = input.detach()](const at::Tensor& delta) {
      add_linear_moments(seen, delta, moments);
    });
  }
  return output;
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& input) {
  if (!moments_ || !torch::GradMode::is_enabled()) return torch::nn::Conv2dImpl::forward(input);
  auto call = c10::make_intrusive<ConvCall>();
  call->conv = settings_of(options);
  call->moments = *moments_;
  // Custom functions of libtorch 1.13 accept no undefined tensors.
  return WatchedConvolution::apply(input, weight, bias.defined() ? bias : at::empty({0}), call);
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& indices) {
  auto output = torch::nn::EmbeddingImpl::forward(indices);
  if (moments_ && output.requires_grad()) {
    output.register_hook([moment = moments_->weight, indices](const at::Tensor& delta) {
      add_embedding_moments(indices, delta, moment);
    });
  }
  return output;
}

}  // namespace thinreduce::train

#include "thinreduce/methods/variance/options.h"

#include <algorithm>
#include <span>

#include "thinreduce/methods/gather_or_owner.h"

namespace thinreduce {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

VarianceOptions::VarianceOptions(const Options& options) {
  rule.alpha = static_cast<float>(options.number("alpha"));
  rule.zeta = static_cast<float>(options.number("zeta"));
  rule.tau = static_cast<float>(options.number("tau"));
  rule.square_weight = 1.0F / static_cast<float>(options.integer("micro"));
  keep = options.text("residual") == "keep";
  full = static_cast<double>(options.integer("full"));
  format.tau = rule.tau;
  format.values = options.text("values") == "f32" ? Values::whole : Values::nibble;
  if (rule.tau > 0) format.values = Values::sign;
  format.index = options.text("index") == "28bit" ? Index::words : Index::compact;
}

float VarianceOptions::alpha_of(const Tensor& tensor) const {
  double pairs = 1;
  for (const std::int64_t size :
       std::span(tensor.shape).first(std::min<std::size_t>(tensor.shape.size(), 2))) {
    pairs *= static_cast<double>(size);
  }
  return pairs < full ? static_cast<float>(rule.alpha * (pairs / full)) : rule.alpha;
}

std::vector<OptionInfo> variance_option_infos() {
  return {
      OptionInfo::number("alpha", 1.5, 0, 100,
                         "An element's gradient sum r is sent once r^2 > alpha * v, where v is the "
                         "sum of (per-sample gradient / batch size)^2 over the samples that were "
                         "added to r; larger values send less."),
      OptionInfo::integer(
          "full", 32768, 0, 1'000'000'000'000,
          "Tensors with fewer than this many (output, input) channel pairs use a proportionally "
          "smaller alpha; 0 disables this. Needs second moments (per element, the sum over "
          "the local batch of (per-sample gradient / batch size)^2), which `thinreduce train` "
          "computes and Python's SecondMoment passes with the gradient; ignored without them."),
      OptionInfo::number(
          "zeta", 0.999, 0, 1,
          "v is multiplied by zeta after each step in which the element is not sent; "
          "1: no decay."),
      OptionInfo::choice("values", "4bit", {"4bit", "f32"},
                         "Encoding of a sent sum. 4bit: a sign and a power of two. f32: the "
                         "unrounded sum. Ignored with tau above 0."),
      OptionInfo::choice("residual", "keep", {"keep", "drop"},
                         "keep: the rounding error of values=4bit starts the element's next sum. "
                         "drop: it is discarded, as in the paper.")
          .for_paper(),
      OptionInfo::choice("index", "compact", {"28bit", "compact"},
                         "Encoding of the indices of sent elements. compact: the gaps between "
                         "them, in as few bits as they need. 28bit: the paper's 32-bit words of 28 "
                         "index bits and 4 value bits, for tensors of at most 2^28 elements.")
          .for_paper(),
      OptionInfo::number("tau", 0, 0, 1e30,
                         "Above 0: only sums of magnitude above tau are sent, as one sign bit that "
                         "stands for tau or -tau (the paper's hybrid algorithm). 0 disables this.")
          .for_paper(),
      OptionInfo::integer("micro", 1, 1, 65536,
                          "Without second moments: the gradient of a step counts as the mean of "
                          "this many samples, so v grows by gradient^2 / micro per step. With "
                          "second moments: ignored."),
      gather_or_owner_option(
          "its sums to the owners of their elements, which send the largest totals to all"),
  };
}

}  // namespace thinreduce

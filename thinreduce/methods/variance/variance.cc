#include "thinreduce/methods/variance/variance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "thinreduce/collective/gather.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/variance/delay.h"
#include "thinreduce/methods/variance/payload.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

struct VarianceOptions {
  kernels::DelayRule rule;
  VarianceFormat format;
  bool keep = true;  // keep the rounding error of a sent sum
  double full = 0;   // (output, input) channel pairs from which on a tensor uses the full alpha

  explicit VarianceOptions(const Options& options) {
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

  // Narrow tensors use a smaller alpha: delaying their elements hurts more, since a convolution's
  // weight is used at every position of its input.
  [[nodiscard]] float alpha_of(const Tensor& tensor) const {
    double pairs = 1;
    for (const std::int64_t size :
         std::span(tensor.shape).first(std::min<std::size_t>(tensor.shape.size(), 2))) {
      pairs *= static_cast<double>(size);
    }
    return pairs < full ? static_cast<float>(rule.alpha * (pairs / full)) : rule.alpha;
  }
};

// Returns the compressed tensors; a bucket without tensors counts as one. Throws Error{bad_input}
// for a tensor that 28 bits cannot index.
std::vector<VarianceTensor> compressed_tensors(const BucketLayout& layout, Index index) {
  std::vector<VarianceTensor> tensors;
  const auto add = [&](const std::string& name, VarianceTensor tensor) {
    if (index == Index::words && tensor.elements > kMaxWordElements) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("variance: {} of bucket {} has {} elements, more than the {} that "
                              "index=28bit supports; use index=compact",
                              name, layout.id, tensor.elements, kMaxWordElements));
    }
    tensors.push_back(tensor);
  };
  for (const Tensor& tensor : layout.tensors) {
    add(fmt::format("tensor '{}'", tensor.name), {tensor.offset, tensor.elements()});
  }
  if (layout.tensors.empty() && layout.elements > 0) add("the bucket", {0, layout.elements});
  return tensors;
}

// Histogram of the steps that sent elements have waited: less than 1, 2, 4, 8, ...
class Delays {
 public:
  void clear() { counts_.fill(0); }
  void add(float steps) {
    const auto waited = static_cast<std::uint32_t>(std::clamp(steps, 0.0F, 65536.0F));
    ++counts_[std::min<std::size_t>(std::bit_width(waited), counts_.size() - 1)];
  }
  // Reports fractions of `elements`, each named by the shortest delay of its class.
  void tell(double elements, std::map<std::string, double>& statistics) const {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      statistics[fmt::format("waited_{:03}", i == 0 ? 0U : 1U << (i - 1))] =
          static_cast<double>(counts_[i]) / elements;
    }
  }

 private:
  std::array<std::uint64_t, 10> counts_{};  // the last counts 256 steps and more
};

class Variance final : public Method {
 public:
  Variance(const BucketLayout& layout, const VarianceOptions& options)
      : options_(options),
        elements_(layout.elements),
        tensors_(compressed_tensors(layout, options.format.index)),
        payload_(options.format, tensors_),
        sums_(elements_),
        squares_(elements_),
        since_(elements_) {
    compressed_ = 0;
    for (const VarianceTensor& tensor : tensors_) compressed_ += tensor.elements;
    for (const Tensor& tensor : layout.tensors) alphas_.push_back(options.alpha_of(tensor));
    if (layout.tensors.empty()) alphas_.push_back(options.rule.alpha);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "variance: the bucket must keep its size",
           bucket.values.size(), elements_);
    ensure(sums_.size() == elements_ && squares_.size() == elements_ && since_.size() == elements_,
           "variance: each element must have a sum, squares and a start", sums_.size(),
           squares_.size(), since_.size(), elements_);
    exchange.timed(Stage::encode, [&] {
      collect(bucket);
      payload_.write(sent_, bytes_);
    });
    try {
      const float share = 1.0F / static_cast<float>(exchange.size());
      incoming_.clear();
      gather(exchange, bytes_, payload_.limit(), [&](int, std::span<const std::byte> payload) {
        incoming_.push_back(payload);
        if (static_cast<int>(incoming_.size()) < exchange.size()) return;
        payload_.add_up(incoming_, share, bucket.values);
      });
    } catch (...) {
      // Nothing was delivered: the sums keep waiting, and their squares decay like all others.
      for (std::size_t i = 0; i < found_; ++i) squares_[indices_[i]] *= options_.rule.zeta;
      throw;
    }
    exchange.timed(Stage::encode, [&] { settle(); });
    tell(bucket, exchange);
    ++steps_;
  }

  void add_residual(std::span<float> values) override { kernels::add(values, sums_); }

  void state(Archive& archive) override {
    archive.summed("residual", sums_);
    archive.summed("squares", squares_);
    archive.replicated("since", since_, Archive::Length::per_element);
    archive.count("steps", steps_, Archive::kMaxSteps);
    archive.check_range("squares", squares_, {0, std::numeric_limits<float>::max()});
    archive.check_range("since", since_, {0, static_cast<double>(Archive::kMaxSteps)});
  }

 private:
  // Adds this step's gradient to the sums and collects the unambiguous ones. Sent sums are not
  // reduced until the exchange has succeeded.
  void collect(const Bucket& bucket) {
    // Elements per run: a run stays in the L1 and L2 caches.
    constexpr std::size_t kRun = 4096;
    sent_.clear();
    found_ = 0;
    kernels::DelayRule rule = options_.rule;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const VarianceTensor& tensor = tensors_[t];
      // Without second moments one sample has r^2 = v: an alpha below 1 would send everything.
      if (!bucket.second_moment.empty()) rule.alpha = alphas_[t];
      const std::size_t before = found_;
      for (std::size_t at = 0; at < tensor.elements; at += kRun) {
        const std::size_t size = std::min(kRun, tensor.elements - at);
        const std::size_t first = tensor.offset + at;
        if (indices_.size() < found_ + size) {
          indices_.resize(std::max(found_ + size, indices_.size() * 2));
          values_.resize(indices_.size());
        }
        found_ += kernels::delay(
            {.gradient = std::span<const float>(bucket.values).subspan(first, size),
             .second_moment = bucket.second_moment.empty()
                                  ? bucket.second_moment
                                  : bucket.second_moment.subspan(first, size),
             .sums = std::span(sums_).subspan(first, size),
             .squares = std::span(squares_).subspan(first, size),
             .first = static_cast<std::uint32_t>(first)},
            rule, {std::span(indices_).subspan(found_), std::span(values_).subspan(found_)});
      }
      encode(before, found_);
    }
  }

  // Encodes one tensor's unambiguous elements, [begin, end) of all.
  void encode(std::size_t begin, std::size_t end) {
    const std::uint32_t exponent =
        exponent_of(kernels::largest_magnitude(std::span(values_).subspan(begin, end - begin)));
    const std::size_t before = sent_.indices.size();
    const auto send = [&](std::size_t i) { sent_.indices.push_back(indices_[i]); };
    sent_.indices.reserve(before + (end - begin));
    for (std::size_t i = begin; i < end; ++i) {
      switch (options_.format.values) {
        case Values::nibble:
          if (const auto code = nibble_of(values_[i], exponent); code != kNotSent) {
            send(i);
            sent_.codes.push_back(code);
          }
          break;
        case Values::sign:
          send(i);
          sent_.codes.push_back(values_[i] < 0 ? 8 : 0);
          break;
        case Values::whole:
          send(i);
          sent_.values.push_back(values_[i]);
          break;
      }
    }
    const auto count = static_cast<std::uint32_t>(sent_.indices.size() - before);
    const bool common = options_.format.values == Values::nibble && count > 0;
    // An exponent that readers refuse tells the other ranks that a sum has overflowed.
    sent_.parts.push_back({count, common || exponent > kMaxExponent ? exponent : 0});
  }

  // Subtracts the sent values from the sums. Unambiguous sums that were too small to send keep
  // waiting.
  void settle() {
    delays_.clear();
    const auto now = static_cast<float>(steps_);
    std::size_t s = 0;
    std::size_t end = 0;
    std::size_t found = 0;
    for (const VarianceSent::Part& part : sent_.parts) {
      for (end += part.count; s < end; ++s) {
        const std::uint32_t index = sent_.indices[s];
        for (; indices_[found] != index; ++found) squares_[indices_[found]] *= options_.rule.zeta;
        ++found;
        deliver(s, part.exponent);
        delays_.add(now - since_[index]);
        since_[index] = now + 1;
      }
    }
    for (; found < found_; ++found) squares_[indices_[found]] *= options_.rule.zeta;
  }

  void deliver(std::size_t s, std::uint32_t exponent) {
    float& sum = sums_[sent_.indices[s]];
    float& squares = squares_[sent_.indices[s]];
    if (options_.format.values == Values::sign) {
      const float tau = options_.rule.tau;
      squares = std::max(squares - 2 * std::abs(sum) * tau + tau * tau, 0.0F);
      sum -= std::copysign(tau, sum);
      return;
    }
    const bool rounded = options_.format.values == Values::nibble;
    sum = rounded && options_.keep ? sum - nibble_value(sent_.codes[s], exponent) : 0.0F;
    squares = 0;
  }

  void tell(const Bucket& bucket, Exchange& exchange) const {
    if (elements_ == 0) return;
    const auto all = static_cast<double>(elements_);
    const auto sent = static_cast<double>(sent_.indices.size());
    const auto found = static_cast<double>(found_);
    auto& statistics = exchange.statistics;
    statistics["sent"] = (sent + all - static_cast<double>(compressed_)) / all;
    statistics["ambiguous"] = (static_cast<double>(compressed_) - found) / all;
    statistics["too_small"] = (found - sent) / all;
    statistics["per_sample"] = bucket.second_moment.empty() ? 0 : 1;
    delays_.tell(all, statistics);
  }

  VarianceOptions options_;
  std::size_t elements_;
  std::vector<VarianceTensor> tensors_;
  std::vector<float> alphas_;   // per tensor
  std::size_t compressed_ = 0;  // elements in all tensors
  VariancePayload payload_;
  std::vector<float> sums_;     // r
  std::vector<float> squares_;  // v
  std::vector<float> since_;    // per element: the step of the first gradient in its sum
  std::uint64_t steps_ = 0;
  // The current step: unambiguous elements, and those of them that are sent.
  std::size_t found_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  VarianceSent sent_;
  std::vector<std::byte> bytes_;
  std::vector<std::span<const std::byte>> incoming_;  // by rank
  Delays delays_;
};

}  // namespace

MethodInfo variance_info() {
  MethodInfo info;
  info.name = "variance";
  info.wire_id = 12;
  info.algebra = Algebra::gather;
  info.summary =
      "Sums each element's gradient over steps and sends the sum once it stands out against the "
      "spread of its samples: 4 bits and an index per sent element.";
  info.paper =
      "Tsuzuku, Imachi and Akiba 2018, Variance-based Gradient Compression for Efficient "
      "Distributed Deep Learning";
  info.second_moment = true;
  info.options = {
      OptionInfo::number("alpha", 1.5, 0, 100,
                         "An element's gradient sum r is sent once r^2 > alpha * v, where v is the "
                         "sum of the squared samples in r; larger values send less."),
      OptionInfo::integer(
          "full", 32768, 0, 1'000'000'000'000,
          "Tensors with fewer than this many (output, input) channel pairs use a proportionally "
          "smaller alpha; 0 disables this. Needs second moments (per element, the sum of the "
          "squared "
          "per-sample gradients), which the caller passes with the gradient; ignored without "
          "them."),
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
                          "Without second moments: the number of samples that a step's gradient is "
                          "taken to average, so v grows by gradient^2 / micro per step. With "
                          "second moments: ignored."),
  };
  info.make = [](const Options& options, const MethodSetup& setup) {
    require_32bit_indices("variance", setup.layout);
    return std::make_unique<Variance>(setup.layout, VarianceOptions(options));
  };
  return info;
}

}  // namespace thinreduce

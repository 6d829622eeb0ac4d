#include "thinreduce/methods/variance/waiting_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

// Elements per run: a run stays in the L1 and L2 caches.
constexpr std::size_t kRun = 4096;

// Returns the compressed tensors that have elements; a bucket without tensors counts as one. Throws
// Error{bad_input} for a tensor that 28 bits cannot index.
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
    if (tensor.elements() == 0) continue;
    add(fmt::format("tensor '{}'", tensor.name), {tensor.offset, tensor.elements()});
  }
  if (layout.tensors.empty() && layout.elements > 0) add("the bucket", {0, layout.elements});
  return tensors;
}

}  // namespace

void Delays::add(float steps) {
  const auto waited = static_cast<std::uint32_t>(std::clamp(steps, 0.0F, 65536.0F));
  ++counts_[std::min<std::size_t>(std::bit_width(waited), counts_.size() - 1)];
}

void Delays::tell(double elements, Statistics& statistics) const {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    statistics[fmt::format("waited_{:03}", i == 0 ? 0U : 1U << (i - 1))] =
        static_cast<double>(counts_[i]) / elements;
  }
}

WaitingSums::WaitingSums(const BucketLayout& layout, const VarianceOptions& options)
    : options_(options),
      tensors_(compressed_tensors(layout, options.format.index)),
      sums_(layout.elements),
      squares_(layout.elements),
      since_(layout.elements) {
  for (const VarianceTensor& tensor : tensors_) compressed_ += tensor.elements;
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.elements() > 0) alphas_.push_back(options.alpha_of(tensor));
  }
  if (layout.tensors.empty()) alphas_.push_back(options.rule.alpha);
}

void WaitingSums::collect(const Bucket& bucket) {
  ensure(bucket.values.size() == sums_.size(), "variance: the bucket must keep its size",
         bucket.values.size(), sums_.size());
  ensure(squares_.size() == sums_.size() && since_.size() == sums_.size(),
         "variance: each element must have a sum, squares and a start", sums_.size(),
         squares_.size(), since_.size());
  sent_ = 0;
  delays_.clear();
  found_ = 0;
  Run next;
  try {
    for_runs({}, [&](const Run& run) {
      next = run;
      make_room(found_ + run.elements.size());
      found_ += collect_run(
          bucket, run, {std::span(indices_).subspan(found_), std::span(values_).subspan(found_)});
    });
  } catch (...) {
    // There is no room for unambiguous sums: all of them wait.
    keep_waiting();
    for_runs(next, [&](const Run& run) {
      std::array<std::uint32_t, kRun> indices;
      std::array<float, kRun> values;
      const std::size_t found = collect_run(bucket, run, {indices, values});
      for (std::size_t i = 0; i < found; ++i) wait_longer(indices[i]);
    });
    throw;
  }
}

template <typename Visit>
void WaitingSums::for_runs(Run from, Visit&& visit) const {
  for (std::size_t t = from.tensor; t < tensors_.size(); ++t) {
    const std::size_t end = tensors_[t].offset + tensors_[t].elements;
    for (std::size_t first = std::max(from.elements.begin, tensors_[t].offset); first < end;
         first += kRun) {
      visit(Run{.elements = {first, std::min(first + kRun, end)}, .tensor = t});
    }
  }
}

void WaitingSums::make_room(std::size_t found) {
  const std::size_t room = std::max(found, 2 * indices_.size());
  // Both, also if memory ran out between them before.
  if (indices_.size() < found) indices_.resize(room);
  if (values_.size() < indices_.size()) values_.resize(indices_.size());
}

std::size_t WaitingSums::collect_run(const Bucket& bucket, const Run& run,
                                     kernels::Candidates out) {
  kernels::DelayRule rule = options_.rule;
  // Without second moments one sample has r^2 = v: an alpha below 1 would send everything.
  if (!bucket.second_moment.empty()) rule.alpha = alphas_[run.tensor];
  return kernels::delay(
      {.gradient = part(std::span<const float>(bucket.values), run.elements),
       .second_moment = bucket.second_moment.empty() ? bucket.second_moment
                                                     : part(bucket.second_moment, run.elements),
       .sums = part(std::span(sums_), run.elements),
       .squares = part(std::span(squares_), run.elements),
       .first = static_cast<std::uint32_t>(run.elements.begin)},
      rule, out);
}

WaitingSums::Found WaitingSums::found(Range range) const {
  const auto indices = std::span(indices_).first(found_);
  const auto begin = std::lower_bound(indices.begin(), indices.end(), range.begin);
  const auto end = std::lower_bound(begin, indices.end(), range.end);
  const auto first = static_cast<std::size_t>(begin - indices.begin());
  const auto count = static_cast<std::size_t>(end - begin);
  return {indices.subspan(first, count), std::span(values_).subspan(first, count)};
}

std::vector<VarianceTensor> WaitingSums::tensors_in(Range range) const {
  std::vector<VarianceTensor> inside;
  for (const VarianceTensor& tensor : tensors_) {
    const std::size_t begin = std::max(tensor.offset, range.begin);
    const std::size_t end = std::min(tensor.offset + tensor.elements, range.end);
    if (begin < end) inside.push_back({begin - range.begin, end - begin});
  }
  return inside;
}

void WaitingSums::encode(Range range, std::span<const VarianceTensor> tensors,
                         VarianceSent& sent) const {
  const Found found = this->found(range);
  sent.fill(options_.format, tensors, {found.indices, found.values, range.begin});
}

void WaitingSums::settle(Range range, const VarianceSent& sent) {
  const Found found = this->found(range);
  std::size_t s = 0;
  std::size_t end = 0;
  std::size_t f = 0;
  for (const VarianceSent::Part& part : sent.parts) {
    for (end += part.count; s < end; ++s) {
      const auto index = static_cast<std::uint32_t>(sent.indices[s] + range.begin);
      for (; found.indices[f] != index; ++f) wait_longer(found.indices[f]);
      ++f;
      deliver(index, sent, s, part.exponent);
      count_delay(index);
    }
  }
  for (; f < found.indices.size(); ++f) wait_longer(found.indices[f]);
}

void WaitingSums::deliver(std::uint32_t index, const VarianceSent& sent, std::size_t s,
                          std::uint32_t exponent) {
  float& sum = sums_[index];
  float& squares = squares_[index];
  if (options_.format.values == Values::sign) {
    const float tau = options_.rule.tau;
    squares = std::max(squares - 2 * std::abs(sum) * tau + tau * tau, 0.0F);
    sum -= std::copysign(tau, sum);
    return;
  }
  const bool rounded = options_.format.values == Values::nibble;
  sum = rounded && options_.keep ? sum - nibble_value(sent.codes[s], exponent) : 0.0F;
  squares = 0;
}

void WaitingSums::settle_owned(Range range, std::span<const float> left,
                               std::span<const std::uint8_t> is_answered) {
  for (const std::uint32_t index : found(range).indices) {
    sums_[index] = 0;
    if (is_answered[index - range.begin]) {
      squares_[index] = 0;
      count_delay(index);
    } else {
      wait_longer(index);
    }
  }
  kernels::add(part(std::span(sums_), range), left);
}

void WaitingSums::count_delay(std::uint32_t index) {
  const auto now = static_cast<float>(steps_);
  delays_.add(now - since_[index]);
  since_[index] = now + 1;
  ++sent_;
}

void WaitingSums::keep_waiting() {
  for (const std::uint32_t index : found(all()).indices) wait_longer(index);
}

void WaitingSums::finish(const Bucket& bucket, Exchange& exchange) {
  ++steps_;
  if (sums_.empty()) return;
  const auto all = static_cast<double>(sums_.size());
  const auto sent = static_cast<double>(sent_);
  const auto found = static_cast<double>(found_);
  auto& statistics = exchange.statistics;
  statistics["sent"] = (sent + all - static_cast<double>(compressed_)) / all;
  statistics["ambiguous"] = (static_cast<double>(compressed_) - found) / all;
  statistics["too_small"] = (found - sent) / all;
  statistics["per_sample"] = bucket.second_moment.empty() ? 0 : 1;
  delays_.tell(all, statistics);
}

void WaitingSums::add_to(std::span<float> values) const {
  kernels::add(values, sums_);
}

void WaitingSums::state(Archive& archive) {
  archive.summed("residual", sums_);
  archive.summed("squares", squares_);
  archive.replicated("since", since_, Archive::Length::per_element);
  archive.count("steps", steps_, Archive::kMaxSteps);
  archive.check_range("squares", squares_, {0, std::numeric_limits<float>::max()});
  archive.check_range("since", since_, {0, static_cast<double>(Archive::kMaxSteps)});
}

}  // namespace thinreduce

#include "apps/train/local_rounds.h"

#include <algorithm>
#include <exception>

#include "thinreduce/wire/checksum.h"

namespace thinreduce::train {
namespace {

std::vector<Tensor> tensors_of(const torch::nn::Module& network) {
  std::vector<Tensor> tensors;
  for (const auto& item : network.named_parameters()) {
    tensors.push_back({item.key(), item.value().sizes().vec()});
  }
  return tensors;
}

}  // namespace

LocalRounds::LocalRounds(Session& session, const LocalStepsOptions& options,
                         torch::nn::Module& network)
    : network_(network), steps_(session, options, tensors_of(network)) {}

void LocalRounds::begin() {
  for (std::size_t f = 0; f < steps_.fragments(); ++f) steps_.set_anchor(f, read(f));
}

std::vector<float> LocalRounds::read(std::size_t fragment) const {
  const auto parameters = network_.parameters();
  std::vector<float> values;
  values.reserve(steps_.layout(fragment).elements);
  for (const std::size_t i : steps_.members(fragment)) {
    const auto* from = parameters[i].data_ptr<float>();
    values.insert(values.end(), from, from + parameters[i].numel());
  }
  return values;
}

void LocalRounds::write(std::size_t fragment, std::span<const float> values) {
  const auto parameters = network_.parameters();
  const auto& tensors = steps_.layout(fragment).tensors;
  const auto& members = steps_.members(fragment);
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::ranges::copy(values.subspan(tensors[i].offset, tensors[i].elements()),
                      parameters[members[i]].data_ptr<float>());
  }
}

void LocalRounds::start_due() {
  const LocalStepsDue due = steps_.advance();
  for (const std::size_t f : due.start) steps_.start(f, read(f));
  due_ = due.apply;
}

Report LocalRounds::apply_due() {
  return apply(due_);
}

Report LocalRounds::apply(const std::vector<std::size_t>& fragments) {
  Report sum;
  std::exception_ptr failed;
  // All of them must end, also after one that failed.
  for (const std::size_t f : fragments) {
    try {
      std::vector<float> values = read(f);
      sum += steps_.apply(f, values);
      write(f, values);
    } catch (...) {
      if (!failed) failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
  return sum;
}

Report LocalRounds::synchronize() {
  std::vector<std::size_t> changed;
  std::vector<std::size_t> under_way;
  for (std::size_t f = 0; f < steps_.fragments(); ++f) {
    if (steps_.has_steps(f)) changed.push_back(f);
    if (steps_.under_way(f)) under_way.push_back(f);
  }
  Report sum = apply(under_way);
  for (const std::size_t f : changed) steps_.start(f, read(f));
  sum += apply(changed);
  return sum;
}

std::uint64_t LocalRounds::shared_checksum() const {
  std::vector<std::uint64_t> sums;
  for (std::size_t f = 0; f < steps_.fragments(); ++f) {
    sums.push_back(checksum(std::as_bytes(steps_.anchor(f))));
  }
  return checksum(std::as_bytes(std::span(sums)));
}

void LocalRounds::show_shared() {
  for (std::size_t f = 0; f < steps_.fragments(); ++f) {
    own_.push_back(read(f));
    write(f, steps_.anchor(f));
  }
}

void LocalRounds::show_own() {
  for (std::size_t f = 0; f < steps_.fragments(); ++f) write(f, own_[f]);
  own_.clear();
}

}  // namespace thinreduce::train

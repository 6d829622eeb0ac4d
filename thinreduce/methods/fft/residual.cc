#include "thinreduce/methods/fft/residual.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"

namespace thinreduce {

FftResidual::FftResidual(FftBlocks& blocks, const SelectedPairs& sent, std::size_t elements,
                         bool feedback)
    : blocks_(blocks), elements_(elements), feedback_(feedback), sent_(sent) {
  set_threads(1);
  if (!feedback_) return;
  spectrum_.resize(blocks_.groups() * blocks_.group_floats());
  groups_.assign(blocks_.groups(), Group::settled);
  reserve();
}

void FftResidual::reserve() {
  unseen_.reserve(elements_);
  sent_.reserve_room(blocks_.group_floats());
}

void FftResidual::set_threads(std::size_t threads) {
  sent_.set_threads(threads);
  while (rooms_.size() < threads) rooms_.emplace_back(blocks_.group_floats());
}

void FftResidual::replace(Groups groups) {
  replaced_ = groups;
  replacement_.resize(groups.size() * blocks_.group_floats());
}

std::span<float> FftResidual::replacement(Groups groups) {
  return std::span<float>(replacement_)
      .subspan((groups.begin - replaced_.begin) * blocks_.group_floats(),
               groups.size() * blocks_.group_floats());
}

std::span<float> FftResidual::spectrum(std::size_t group) {
  return std::span(spectrum_).subspan(group * blocks_.group_floats(), blocks_.group_floats());
}

std::span<const float> FftResidual::take_in(std::size_t group, std::span<const float> gradient,
                                            std::size_t thread) {
  if (feedback_ && groups_[group] == Group::taken) return spectrum(group);
  const std::span<float> sum = rooms_[thread];
  blocks_.to_spectrum(group, gradient, unseen_, sum, thread);
  if (!feedback_) return sum;
  settle_group(group, thread);
  const auto residual = spectrum(group);
  if (!kernels::add_exchange(residual, sum)) {
    std::ranges::swap_ranges(residual, sum);
    return sum;
  }
  groups_[group] = Group::taken;
  return residual;
}

void FftResidual::delivered(Groups groups) {
  if (feedback_) std::fill_n(&groups_[groups.begin], groups.size(), Group::delivered);
}

void FftResidual::settle(SelectedPairs& selected) {
  if (!feedback_) return;
  sent_.swap_selection(selected);
  std::ranges::fill(groups_, Group::owing);
  unseen_.clear();
}

void FftResidual::settle_group(std::size_t group, std::size_t thread) {
  if (groups_[group] != Group::owing) return;
  if (group >= replaced_.begin && group < replaced_.end) {
    std::ranges::copy(replacement({group, group + 1}), spectrum(group).begin());
  } else {
    sent_.add_sent({group, group + 1}, -1, spectrum(group), thread);
  }
  groups_[group] = Group::settled;
}

void FftResidual::settle_all() {
  for (std::size_t group = 0; group < groups_.size(); ++group) settle_group(group);
}

void FftResidual::keep_all(std::span<const float> gradient) {
  if (!feedback_) return;
  const bool had_unseen = !unseen_.empty();
  unseen_.resize(elements_);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    settle_group(group);
    if (groups_[group] == Group::taken) {
      // The same bits were added: a residual of zero is zero again.
      const auto more = had_unseen ? std::span<const float>(unseen_) : std::span<const float>();
      blocks_.to_spectrum(group, gradient, more, rooms_[0]);
      kernels::scale(rooms_[0], -1);
      kernels::add(spectrum(group), rooms_[0]);
    }
    blocks_.for_runs(group, [&](std::size_t offset, std::size_t, std::size_t length) {
      const auto unseen = std::span(unseen_).subspan(offset, length);
      if (groups_[group] == Group::delivered) {
        std::ranges::fill(unseen, 0.0f);
      } else {
        kernels::add(unseen, gradient.subspan(offset, length));
      }
    });
    groups_[group] = Group::settled;
  }
}

void FftResidual::add_to(std::span<float> values) {
  settle_all();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    blocks_.from_spectrum(group, spectrum(group),
                          [&](std::size_t offset, std::span<const float> floats) {
                            kernels::add(values.subspan(offset, floats.size()), floats);
                          });
  }
  if (!unseen_.empty()) kernels::add(values, unseen_);
}

void FftResidual::state(Archive& archive) {
  if (!feedback_) return;
  settle_all();
  const std::size_t floats = spectrum_.size();
  archive.summed("residual spectrum", spectrum_, Archive::Length::any);
  archive.summed("unseen gradient", unseen_, Archive::Length::per_element_or_none);
  if (spectrum_.empty()) spectrum_.resize(floats);  // a rank that joins owes nothing
  if (archive.loading()) reserve();
  if (spectrum_.size() == floats) return;
  const std::size_t loaded = spectrum_.size();
  spectrum_.assign(floats, 0.0f);
  throw Error(
      ErrorCode::bad_state,
      fmt::format("fft: the saved 'residual spectrum' has {} values, must have {}; load the state "
                  "of the same model and buckets",
                  loaded, floats));
}

}  // namespace thinreduce

// A world of GradiVeQ ranks, gradients for it, and the residuals of its ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/test_world.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"

namespace thinreduce {

class GradiveqWorld : public TestWorld {
 public:
  GradiveqWorld(int world, const GradiveqSettings& settings, BucketLayout layout)
      : TestWorld(world, std::move(layout), [&](MethodSetup setup) {
          setup.seed = 5;
          return make_gradiveq(settings, setup);
        }) {}
};

inline GradiveqSettings quick(std::uint64_t warmup, std::uint64_t interval) {
  GradiveqSettings settings;
  settings.warmup = warmup;
  settings.interval = interval;
  settings.collect = 3;
  return settings;
}

// A trigger that no loss reaches.
inline constexpr double kNoVotes = 1e9;

// Makes `settings` send `size` floats per slice.
inline void set_basis_size(GradiveqSettings& settings, std::size_t size) {
  const double whole =
      settings.phases ? 0 : settings.sample + (settings.feedback ? settings.flush : 0);
  const double sent = static_cast<double>(size) / static_cast<double>(settings.slice);
  settings.ratio = 1 / (whole + (1 - whole) * sent);
}

// Returns gradients whose slices of `slice` floats lie in a space of `basis_size` dimensions, the
// same space for all seeds.
inline PerRank few_direction_gradients(int world, std::size_t slices, std::size_t slice,
                                       std::size_t basis_size, unsigned seed) {
  const auto directions = normal_gradients(static_cast<int>(basis_size), slice, 99);
  const auto amounts = normal_gradients(world, slices * basis_size, seed);
  PerRank gradients(static_cast<std::size_t>(world), std::vector<float>(slices * slice));
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (std::size_t s = 0; s < slices; ++s) {
      for (std::size_t j = 0; j < basis_size; ++j) {
        for (std::size_t k = 0; k < slice; ++k) {
          gradients[r][s * slice + k] += amounts[r][s * basis_size + j] * directions[j][k];
        }
      }
    }
  }
  return gradients;
}

// The sum of all gradients, and of all means times the number of ranks.
struct Totals {
  explicit Totals(std::size_t elements) : given(elements), applied(elements) {}

  void add(const PerRank& gradients, const std::vector<float>& mean) {
    const auto sum = exact_sum(gradients);
    for (std::size_t i = 0; i < given.size(); ++i) {
      given[i] += sum[i];
      applied[i] += static_cast<double>(gradients.size()) * static_cast<double>(mean[i]);
    }
  }

  std::vector<double> given;
  std::vector<double> applied;
};

inline double error_of(const std::vector<float>& mean, const PerRank& gradients) {
  const auto sum = exact_sum(gradients);
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double truth = sum[i] / static_cast<double>(gradients.size());
    error += std::pow(static_cast<double>(mean[i]) - truth, 2);
    energy += truth * truth;
  }
  return energy > 0 ? error / energy : error;
}

// Returns the residual of a rank for a shapeless bucket: the part of `kept` that was not sent, the
// owed projections, and what a failed step took back.
inline std::vector<float> residual_of(const MemoryArchive& archive, std::size_t slice) {
  std::vector<float> kept = archive.find("kept");
  const auto& taken_back = archive.find("taken back");
  if (!taken_back.empty()) {
    EXPECT_EQ(std::ranges::count(kept, 0.0f), std::ssize(kept));
    return taken_back;
  }
  const auto rank = archive.find_number("basis size");
  if (archive.find_number("fresh") != 0 || rank == 0) return kept;
  const auto& basis = archive.find("basis");
  const std::vector<float> none;
  const auto& owed = archive.has("owed") ? archive.find("owed") : none;
  const std::size_t slices = kept.size() / slice;
  for (std::size_t s = 0; s + slice <= kept.size(); s += slice) {
    std::vector<double> projection(rank);
    for (std::size_t k = 0; k < slice; ++k) {
      for (std::size_t j = 0; j < rank; ++j) {
        projection[j] +=
            static_cast<double>(basis[k * rank + j]) * static_cast<double>(kept[s + k]);
      }
    }
    for (std::size_t k = 0; k < slice; ++k) {
      double sent = 0;
      for (std::size_t j = 0; j < rank; ++j) {
        const double owes = owed.empty() ? 0 : static_cast<double>(owed[j * slices + s / slice]);
        sent += static_cast<double>(basis[k * rank + j]) * (projection[j] - owes);
      }
      kept[s + k] -= static_cast<float>(sent);
    }
  }
  return kept;
}

// Rank 1 leaves after some steps: rank 0 must keep its residual and its whole gradient. Covers
// every phase of the settings quick(2, 4).
inline void expect_failed_exchange_keeps_the_gradient(GradiveqSettings settings) {
  constexpr std::size_t kElements = 16 * 40 + 5;
  settings.slice = 16;
  settings.trigger = kNoVotes;
  for (const unsigned before : {0U, 2U, 3U, 6U}) {
    SCOPED_TRACE(testing::Message() << "fails after " << before << " steps");
    GradiveqWorld ranks(2, settings, shapeless(kElements));
    for (unsigned step = 0; step < before; ++step) {
      (void)ranks.mean(normal_gradients(2, kElements, step));
    }
    auto expected = residual_of(ranks.saved(0), 16);
    const auto gradients = normal_gradients(2, kElements, 50);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += gradients[0][i];
    ranks.transport(1).abandon("this rank leaves");
    (void)ranks.step(gradients);
    ASSERT_NE(ranks.thrown[0], nullptr);
    const auto residual = residual_of(ranks.saved(0), 16);
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(residual[i], expected[i], 1e-5);
  }
}

// State that is saved after `moment` steps and loaded into new methods must give the same bits in
// the rest of the run.
inline void expect_saved_state_resumes(const GradiveqSettings& settings, unsigned moment) {
  const auto layout = layout_of({{16, 8, 3, 3}, {10, 256}});
  GradiveqWorld whole(3, settings, layout);
  GradiveqWorld first(3, settings, layout);
  GradiveqWorld second(3, settings, layout);
  for (unsigned step = 0; step < 14; ++step) {
    const auto gradients = normal_gradients(3, layout.elements, step);
    const auto expected = whole.mean(gradients);
    if (step < moment) (void)first.mean(gradients);
    if (step + 1 == moment) {
      for (std::size_t rank = 0; rank < 3; ++rank) second.load(rank, first.saved(rank));
    }
    if (step < moment) continue;
    const auto resumed = second.mean(gradients);
    ASSERT_EQ(std::memcmp(resumed.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "step " << step;
    ASSERT_EQ(second.method(0).fingerprint(), whole.method(0).fingerprint());
  }
}

}  // namespace thinreduce

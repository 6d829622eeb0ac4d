#include "thinreduce/methods/gradiveq/basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/random_data.h"

namespace thinreduce::basis_test {
namespace {

// Samples whose energy falls off from direction to direction, so that the directions are definite.
std::vector<float> correlated(std::size_t count, std::size_t slice, unsigned seed) {
  const auto mixing = normal_floats(slice * slice, seed);
  std::vector<float> samples(count * slice);
  std::mt19937 random(seed + 1);
  std::normal_distribution<float> draw;
  for (std::size_t i = 0; i < count; ++i) {
    float strength = 1;
    for (std::size_t j = 0; j < slice; ++j, strength *= 0.7f) {
      const float amount = strength * draw(random);
      for (std::size_t k = 0; k < slice; ++k) {
        samples[i * slice + k] += amount * mixing[j * slice + k];
      }
    }
  }
  return samples;
}

double energy(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// Projects slices and rebuilds them.
std::vector<float> through(const Basis& basis, std::span<const float> slices) {
  std::vector<float> projected(slices.size() / basis.slice() * basis.size());
  std::vector<float> rebuilt(slices.size());
  basis.project(slices, projected);
  basis.rebuild(projected, rebuilt);
  return rebuilt;
}

Basis basis_of(const Spectrum& spectrum, std::size_t size) {
  return {spectrum.columns(size), spectrum.slice, size};
}

Spectrum spectrum_of(std::span<const float> samples, std::size_t slice) {
  SliceStatistics statistics(slice);
  statistics.add(samples);
  return statistics.spectrum();
}

struct Case {
  std::size_t slice, size, samples;
};
constexpr Case kCases[] = {{1, 1, 5},    {2, 1, 1},    {7, 3, 40},  {16, 2, 5},
                           {33, 32, 90}, {64, 8, 300}, {64, 8, 20}, {144, 18, 60}};

TEST(GradiveqBasis, ColumnsAreOrthonormal) {
  for (const auto& c : kCases) {
    const auto samples = correlated(c.samples, c.slice, 1);
    const auto columns = spectrum_of(samples, c.slice).columns(c.size);
    for (std::size_t a = 0; a < c.size; ++a) {
      for (std::size_t b = 0; b <= a; ++b) {
        double product = 0;
        for (std::size_t k = 0; k < c.slice; ++k) {
          product += static_cast<double>(columns[k * c.size + a]) *
                     static_cast<double>(columns[k * c.size + b]);
        }
        ASSERT_NEAR(product, a == b ? 1 : 0, 1e-6) << c.slice << " " << a << " " << b;
      }
    }
  }
}

TEST(GradiveqBasis, ProjectionIsLinear) {
  for (const auto& c : kCases) {
    const Basis basis = basis_of(spectrum_of(correlated(c.samples, c.slice, 2), c.slice), c.size);
    const auto a = normal_floats(c.slice, 3);
    const auto b = normal_floats(c.slice, 4);
    std::vector<float> both(c.slice);
    for (std::size_t k = 0; k < c.slice; ++k) both[k] = a[k] + b[k];
    std::vector<float> of_a(basis.size());
    std::vector<float> of_b = of_a;
    std::vector<float> of_both = of_a;
    basis.project(a, of_a);
    basis.project(b, of_b);
    basis.project(both, of_both);
    for (std::size_t j = 0; j < c.size; ++j) ASSERT_NEAR(of_both[j], of_a[j] + of_b[j], 1e-5);
  }
}

TEST(GradiveqBasis, ProjectingTwiceChangesNothing) {
  for (const auto& c : kCases) {
    const Basis basis = basis_of(spectrum_of(correlated(c.samples, c.slice, 5), c.slice), c.size);
    const auto once = through(basis, normal_floats(c.slice * 3, 6));
    const auto twice = through(basis, once);
    for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], once[i], 1e-5);
  }
}

TEST(GradiveqBasis, LosesTheDroppedEnergiesOfItsSamples) {
  for (const auto& c : kCases) {
    const auto samples = correlated(c.samples, c.slice, 7);
    const auto spectrum = spectrum_of(samples, c.slice);
    EXPECT_NEAR(spectrum.total(), energy(samples), 1e-5 * energy(samples));
    for (const std::size_t size : {std::size_t{1}, c.size}) {
      const Basis basis = basis_of(spectrum, size);
      const auto rebuilt = through(basis, samples);
      double lost = 0;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        lost += std::pow(static_cast<double>(samples[i]) - static_cast<double>(rebuilt[i]), 2);
      }
      double dropped = 0;
      for (std::size_t j = size; j < spectrum.energies.size(); ++j) dropped += spectrum.energies[j];
      EXPECT_NEAR(lost, dropped, 1e-5 * energy(samples)) << c.slice << " " << size;
    }
  }
}

TEST(GradiveqBasis, FullSizeIsExact) {
  for (const std::size_t slice : {1, 5, 16, 33, 144}) {
    const Basis basis = basis_of(spectrum_of(correlated(9, slice, 8), slice), slice);
    const auto slices = normal_floats(slice * 4, 9);
    const auto rebuilt = through(basis, slices);
    for (std::size_t i = 0; i < slices.size(); ++i) ASSERT_NEAR(rebuilt[i], slices[i], 1e-5);
  }
}

// By their inner products and by the matrix of moments: the same energies, the same subspace.
TEST(GradiveqBasis, BothRoutesAgree) {
  for (const auto& c : {Case{24, 4, 10}, Case{64, 6, 40}, Case{144, 10, 60}}) {
    const auto samples = correlated(c.samples, c.slice, 10);
    std::vector<float> moments(c.slice * c.slice);
    for (std::size_t a = 0; a < c.slice; ++a) {
      for (std::size_t b = 0; b < c.slice; ++b) {
        double sum = 0;
        for (std::size_t i = 0; i < c.samples; ++i) {
          sum += static_cast<double>(samples[i * c.slice + a]) *
                 static_cast<double>(samples[i * c.slice + b]);
        }
        moments[a * c.slice + b] = static_cast<float>(sum);
      }
    }
    const auto by_moments = thinreduce::spectrum_of(moments, c.slice, true);
    const auto by_samples = thinreduce::spectrum_of(samples, c.slice, false);
    for (std::size_t j = 0; j < c.size; ++j) {
      EXPECT_NEAR(by_samples.energies[j], by_moments.energies[j], 1e-5 * by_moments.energies[0]);
    }
    const auto probe = normal_floats(c.slice * 3, 11);
    const auto a = through(basis_of(by_moments, c.size), probe);
    const auto b = through(basis_of(by_samples, c.size), probe);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-3);
  }
}

TEST(GradiveqBasis, SizeForEnergy) {
  const Spectrum spectrum{4, {6, 3, 1, 0}, std::vector<double>(16)};
  EXPECT_EQ(spectrum.size_for(0.5), 1U);
  EXPECT_EQ(spectrum.size_for(0.6), 1U);
  EXPECT_EQ(spectrum.size_for(0.61), 2U);
  EXPECT_EQ(spectrum.size_for(0.9), 2U);
  EXPECT_EQ(spectrum.size_for(0.99), 3U);
  EXPECT_EQ(spectrum.size_for(1), 3U);
  EXPECT_EQ((Spectrum{4, {}, {}}).size_for(0.9), 1U);
}

// However the samples come in, in whatever portions, what is known is the same.
TEST(SliceStatistics, PortionsDoNotMatter) {
  constexpr std::size_t kSlice = 17;
  const auto samples = normal_floats(kSlice * 100, 12);
  const Spectrum whole = spectrum_of(samples, kSlice);
  for (const std::size_t portion : {1, 3, 16, 17, 99}) {
    SliceStatistics statistics(kSlice);
    SliceStatistics other(kSlice);
    for (std::size_t at = 0; at < samples.size(); at += portion * kSlice) {
      const auto part = std::span<const float>(samples).subspan(
          at, std::min(portion * kSlice, samples.size() - at));
      (at % 2 == 0 ? statistics : other).add(part);
    }
    statistics.add(other);
    EXPECT_EQ(statistics.weight(), 100);
    EXPECT_NEAR(statistics.energy(), energy(samples), 1e-5 * energy(samples));
    const auto spectrum = statistics.spectrum();
    for (std::size_t j = 0; j < kSlice; ++j) {
      EXPECT_NEAR(spectrum.energies[j], whole.energies[j], 1e-4 * whole.energies[0]);
    }
    const Basis basis = basis_of(spectrum, 5);
    double kept = 0;
    for (std::size_t j = 0; j < 5; ++j) kept += spectrum.energies[j];
    EXPECT_NEAR(statistics.energy_within(basis), kept, 1e-4 * energy(samples));
  }
}

TEST(SliceStatistics, ForgettingKeepsTheDirections) {
  SliceStatistics statistics(8);
  statistics.add(correlated(100, 8, 13));
  const double before = statistics.energy();
  statistics.forget(200);
  EXPECT_EQ(statistics.energy(), before);
  statistics.forget(25);
  EXPECT_EQ(statistics.weight(), 25);
  EXPECT_NEAR(statistics.energy(), before / 4, before * 1e-6);
}

TEST(SliceStatistics, NothingKnownIsStillABasis) {
  const Basis basis = basis_of(SliceStatistics(6).spectrum(), 2);
  const auto once = through(basis, normal_floats(6, 14));
  EXPECT_NEAR(energy(through(basis, once)), energy(once), 1e-6);
  EXPECT_GT(energy(once), 0);
}

}  // namespace
}  // namespace thinreduce::basis_test

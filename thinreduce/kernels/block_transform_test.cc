#include "thinreduce/kernels/block_transform.h"

#include <fftw3.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/random_data.h"
#include "tests/test_data.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/kernels/trigonometry.h"

namespace thinreduce::kernels::block_transform_test {
namespace {

constexpr std::size_t kLengths[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr Transform kTransforms[] = {Transform::fft, Transform::dct};

std::vector<float> normal_blocks(std::size_t length, unsigned seed) {
  return normal_floats(length * kBlockLanes, seed);
}

std::vector<float> spectra_of(const TransformTables& tables, std::span<const float> blocks) {
  AlignedFloats scratch(blocks.size());
  std::vector<float> spectra(blocks.size());
  forward(tables, blocks, spectra, scratch);
  return spectra;
}

std::vector<float> blocks_of(const TransformTables& tables, std::span<const float> spectra,
                             float scale = 1) {
  AlignedFloats scratch(spectra.size());
  std::vector<float> blocks(spectra.size());
  inverse(tables, spectra, scale, blocks, scratch);
  return blocks;
}

// Returns one block's coefficients computed by FFTW, in our order and scale.
std::vector<double> fftw_spectrum(Transform transform, std::span<const float> block) {
  const std::size_t n = block.size();
  std::vector<double> in(block.begin(), block.end());
  std::vector<double> out(n + 2);
  const bool fft = transform == Transform::fft;
  const auto plan =
      fft ? fftw_plan_dft_r2c_1d(static_cast<int>(n), in.data(),
                                 reinterpret_cast<fftw_complex*>(out.data()), FFTW_ESTIMATE)
          : fftw_plan_r2r_1d(static_cast<int>(n), in.data(), out.data(), FFTW_REDFT10,
                             FFTW_ESTIMATE);
  fftw_execute(plan);
  fftw_destroy_plan(plan);
  const double whole = std::sqrt(2.0 / static_cast<double>(n));
  const double end = std::sqrt(1.0 / static_cast<double>(n));
  if (fft) {
    out[1] = out[n];  // Nyquist beside DC
    for (std::size_t q = 0; q < n; ++q) out[q] *= q < 2 ? end : whole;
  } else {
    for (std::size_t q = 0; q < n; ++q) out[q] *= (q < 1 ? end : whole) / 2;
  }
  out.resize(n);
  return out;
}

TEST(Trigonometry, AgreesWithTheLibrary) {
  for (const std::size_t n : {8u, 64u, 1024u, 65536u}) {
    for (std::size_t k = 0; k<2 * n; k += n> 2000 ? 17 : 1) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
      const CosSin result = turn(k, n);
      // The library's own argument is off by up to 2^-53 of 4 pi.
      EXPECT_NEAR(result.cos, std::cos(angle), 2e-15);
      EXPECT_NEAR(result.sin, std::sin(angle), 2e-15);
      EXPECT_NEAR(result.cos * result.cos + result.sin * result.sin, 1, 5e-16);
    }
  }
  EXPECT_EQ(turn(2, 8).cos, 0);
  EXPECT_EQ(turn(2, 8).sin, 1);
  EXPECT_EQ(turn(4, 8).cos, -1);
}

TEST(BlockTransform, EqualsFftw) {
  for (const auto length : kLengths) {
    for (const auto transform : kTransforms) {
      const TransformTables tables(length, transform);
      const auto blocks = normal_blocks(length, 1);
      const auto spectra = spectra_of(tables, blocks);
      for (const std::size_t lane : {0u, 5u, 15u}) {
        const auto expected =
            fftw_spectrum(transform, std::span(blocks).subspan(lane * length, length));
        double error = 0;
        for (std::size_t q = 0; q < length; ++q) {
          const double difference = spectra[q * kBlockLanes + lane] - expected[q];
          error += difference * difference;
        }
        // Each of some log2(n) roundings adds about 2^-24 of the root mean square, which is 1.
        const double rms = std::sqrt(error / static_cast<double>(length));
        EXPECT_LT(rms, 0x1p-24 * 3 * std::log2(length)) << length << " lane " << lane;
      }
    }
  }
}

// The spectrum has the energy of the block, so dropping coefficients costs exactly their energy.
TEST(BlockTransform, Parseval) {
  for (const auto length : kLengths) {
    for (const auto transform : kTransforms) {
      const TransformTables tables(length, transform);
      const auto blocks = normal_blocks(length, 2);
      auto spectra = spectra_of(tables, blocks);
      double energy = 0, total = 0, dropped = 0;
      for (const float value : blocks) energy += static_cast<double>(value) * value;
      std::mt19937 random(3);
      for (auto& value : spectra) {
        const double square = static_cast<double>(value) * value;
        total += square;
        if (random() % 3 == 0) {
          dropped += square;
          value = 0;
        }
      }
      EXPECT_NEAR(total / energy, 1, 1e-6);
      const auto back = blocks_of(tables, spectra);
      double error = 0;
      for (std::size_t i = 0; i < back.size(); ++i) {
        const double difference = static_cast<double>(back[i]) - blocks[i];
        error += difference * difference;
      }
      EXPECT_NEAR(error / dropped, 1, 1e-5);
    }
  }
}

TEST(BlockTransform, InverseGivesTheBlocksBack) {
  for (const auto length : kLengths) {
    for (const auto transform : kTransforms) {
      const TransformTables tables(length, transform);
      const auto blocks = normal_blocks(length, 4);
      const auto back = blocks_of(tables, spectra_of(tables, blocks));
      for (std::size_t i = 0; i < blocks.size(); ++i) ASSERT_NEAR(back[i], blocks[i], 5e-6) << i;
    }
  }
}

// A wave fills one pair, a constant the first coefficient, a spike all coefficients equally.
TEST(BlockTransform, KnownSpectra) {
  constexpr std::size_t kLength = 256;
  const TransformTables tables(kLength, Transform::fft);
  std::vector<float> blocks(kLength * kBlockLanes);
  for (std::size_t i = 0; i < kLength; ++i) {
    const double angle = 2 * std::numbers::pi * 5 * static_cast<double>(i) / kLength;
    blocks[i] = 1;
    blocks[kLength + i] = static_cast<float>(std::cos(angle));
    blocks[2 * kLength + i] = static_cast<float>(std::sin(angle));
    blocks[3 * kLength + i] = i % 2 == 0 ? 1.0f : -1.0f;
  }
  blocks[4 * kLength] = 1;
  const auto spectra = spectra_of(tables, blocks);
  const float wave = std::sqrt(kLength / 2.0f);
  for (std::size_t q = 0; q < kLength; ++q) {
    const float* row = &spectra[q * kBlockLanes];
    EXPECT_NEAR(row[0], q == 0 ? 16 : 0, 1e-5) << q;
    EXPECT_NEAR(row[1], q == 10 ? wave : 0, 1e-5) << q;
    EXPECT_NEAR(row[2], q == 11 ? -wave : 0, 1e-5) << q;
    EXPECT_NEAR(row[3], q == 1 ? 16 : 0, 1e-5) << q;
    EXPECT_NEAR(row[4], q < 2 ? 1 / 16.0f : (q % 2 == 0 ? 1 / wave : 0), 1e-5) << q;
    EXPECT_EQ(row[15], 0) << q;
  }
}

// Blocks are independent: a block's spectrum has the same bits in every lane.
TEST(BlockTransform, LanesAreIndependent) {
  const TransformTables tables(128, Transform::fft);
  auto blocks = normal_blocks(128, 6);
  for (std::size_t lane = 1; lane < kBlockLanes; ++lane) {
    std::copy_n(blocks.begin(), 128, blocks.begin() + static_cast<long>(128 * lane));
  }
  blocks[128 * 7] = 1e30f;
  const auto spectra = spectra_of(tables, blocks);
  for (std::size_t q = 0; q < 128; ++q) {
    for (std::size_t lane = 1; lane < kBlockLanes; ++lane) {
      if (lane == 7) continue;
      ASSERT_EQ(spectra[q * kBlockLanes + lane], spectra[q * kBlockLanes]);
    }
  }
}

TEST(BlockTransform, EqualsTheReferenceOnEveryTarget) {
  for (const auto length : kLengths) {
    for (const auto transform : kTransforms) {
      const TransformTables tables(length, transform);
      auto blocks = normal_blocks(length, 5);
      std::fill_n(blocks.begin(), length, -0.0f);
      std::vector<float> spectra(blocks.size()), back(blocks.size());
      AlignedFloats scratch(blocks.size());
      reference::forward(tables, blocks, spectra, scratch);
      reference::inverse(tables, spectra, 1, back, scratch);
      auto scaled = back;
      for (auto& value : scaled) value *= 0.3f;
      on_every_target([&] {
        EXPECT_TRUE(same_bits<float>(spectra_of(tables, blocks), spectra)) << length;
        EXPECT_TRUE(same_bits<float>(blocks_of(tables, spectra), back)) << length;
        EXPECT_TRUE(same_bits<float>(blocks_of(tables, spectra, 0.3f), scaled)) << length;
      });
    }
  }
}

TEST(BlockTransform, WrongSizesAreABug) {
  EXPECT_THROW(TransformTables(32, Transform::fft), BrokenInvariant);
  EXPECT_THROW(TransformTables(96, Transform::fft), BrokenInvariant);
  EXPECT_THROW(TransformTables(32768, Transform::fft), BrokenInvariant);
  const TransformTables tables(64, Transform::fft);
  AlignedFloats right(1024), wrong(1023);
  EXPECT_THROW(forward(tables, wrong, right, right), BrokenInvariant);
  EXPECT_THROW(inverse(tables, right, 1, right, wrong), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::block_transform_test

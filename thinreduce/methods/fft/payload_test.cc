#include "thinreduce/methods/fft/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/random_data.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/fft/pairs.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::fft_payload_test {
namespace {

using Bytes = std::vector<std::byte>;

// A spectrum to write, which owns its memory.
struct Spectrum {
  SpectrumHead head;
  std::vector<std::uint64_t> bitmap;
  std::vector<std::uint16_t> codes;
};

Spectrum random_spectrum(std::size_t words, double density, int bits, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution kept(density);
  Spectrum spectrum;
  spectrum.bitmap.resize(words);
  for (auto& word : spectrum.bitmap) {
    for (unsigned bit = 0; bit < 64; ++bit) word |= std::uint64_t{kept(random)} << bit;
  }
  spectrum.head.format = kernels::RangeFloat::covering({-3, 2}, bits, bits / 2);
  spectrum.codes.resize(2 * kernels::count_pairs(spectrum.bitmap));
  for (auto& code : spectrum.codes) {
    code = static_cast<std::uint16_t>(random() % (spectrum.head.format.last_code() + 1));
  }
  spectrum.head.kept_energy = 0.625f;
  return spectrum;
}

// `run_words` are the words per run of the lists that are written.
Bytes written(const Spectrum& spectrum, std::size_t run_words = kStripWords) {
  const std::size_t words = spectrum.bitmap.size();
  std::vector<std::size_t> firsts;
  std::vector<std::uint16_t> positions;
  for (std::size_t word = 0; word < words; ++word) {
    if (word % run_words == 0) firsts.push_back(100 + positions.size());
    kernels::for_pairs(std::span(spectrum.bitmap).subspan(word, 1), [&](std::size_t pair) {
      positions.push_back(static_cast<std::uint16_t>(word % run_words * 64 + pair));
    });
  }
  firsts.push_back(100 + positions.size());
  Bytes payload;
  write_fft_payload(spectrum.head, {words, run_words, firsts, positions, spectrum.codes}, payload);
  return payload;
}

// Reads into a spectrum that still holds another payload.
Spectrum read(const Bytes& payload, std::size_t words, int bits) {
  SparseSpectrum lists;
  lists.counts.resize(1000, 7);
  lists.positions.resize(100, 9);
  read_fft_payload(payload, {words, bits}, 3, lists);
  Spectrum spectrum{lists.head, std::vector<std::uint64_t>(words), lists.codes};
  std::size_t next = 0;
  for (std::size_t strip = 0; strip < lists.counts.size(); ++strip) {
    for (unsigned i = 0; i < lists.counts[strip]; ++i) {
      const std::size_t pair = strip * kStripPairs + lists.positions.at(next++);
      spectrum.bitmap.at(pair / 64) |= std::uint64_t{1} << (pair % 64);
    }
  }
  EXPECT_EQ(next, lists.positions.size());
  return spectrum;
}

std::string refusal(const Bytes& payload, std::size_t words, int bits) {
  try {
    (void)read(payload, words, bits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("FFT payload of rank 3"));
    return error.what();
  }
  return "accepted";
}

// The bytes that docs/methods/fft.md promises.
TEST(FftPayload, Layout) {
  Spectrum spectrum;
  spectrum.bitmap = {std::uint64_t{1} << 5 | std::uint64_t{1} << 40, 0};
  spectrum.head.format = kernels::RangeFloat::covering({-1, 1}, 8, 3);
  spectrum.codes = {1, 127, 128, 254};
  spectrum.head.kept_energy = 0.5f;
  const Bytes payload = written(spectrum);
  // Gaps 5 and 34 with 4 low bits, lowest bit first: 1 1010, 001 0100.
  const std::vector<int> expected = {2,    0,   0,
                                     0,  // pairs
                                     8,    3,   0,
                                     0,  // bits, mantissa
                                     0x7a, 3,   0,
                                     0,  // base
                                     127,  0,   0,   0,  127, 0, 0,
                                     0,  // codes
                                     0,    0,   0,
                                     0x3f,  // energy
                                     2,
                                     0x40,  // strip
                                     0x8b,
                                     2,                     // positions
                                     1,    127, 128, 254};  // codes
  ASSERT_EQ(payload.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(payload[i]), expected[i]) << "byte " << i;
  }
}

TEST(FftPayload, ComesBack) {
  for (const std::size_t words : {1u, 8u, 31u, 32u, 33u, 100u}) {
    for (const double density : {0.001, 0.02, 0.15, 0.5, 0.97, 1.0}) {
      for (const int bits : {4, 10, 15, 16}) {
        const auto spectrum = random_spectrum(words, density, bits, 1);
        const Bytes payload = written(spectrum);
        EXPECT_LE(payload.size(), fft_payload_limit({words, bits}));
        for (const std::size_t run_words : {8u, 16u}) {
          EXPECT_EQ(written(spectrum, run_words), payload);
        }
        const auto back = read(payload, words, bits);
        EXPECT_EQ(back.bitmap, spectrum.bitmap);
        EXPECT_EQ(back.codes, spectrum.codes);
        EXPECT_EQ(back.codes.size(), 2 * kernels::count_pairs(back.bitmap));
        if (spectrum.codes.empty()) continue;
        EXPECT_EQ(back.head.format, spectrum.head.format);
        EXPECT_EQ(back.head.kept_energy, spectrum.head.kept_energy);
      }
    }
  }
}

// Positions cost close to their entropy, and never more than a bitmap.
TEST(FftPayload, PositionsAreShort) {
  constexpr std::size_t kWords = 3200;
  for (const double density : {0.003, 0.05, 0.15, 0.3, 0.5, 0.9}) {
    const auto spectrum = random_spectrum(kWords, density, 10, 2);
    const double pairs = kWords * 64;
    const double positions = 8.0 * static_cast<double>(written(spectrum).size()) -
                             10.0 * static_cast<double>(spectrum.codes.size());
    const double entropy =
        -pairs * (density * std::log2(density) + (1 - density) * std::log2(1 - density));
    EXPECT_LT(positions, pairs * 1.02);
    if (density > 0.4) continue;
    EXPECT_LT(positions, entropy * 1.06 + pairs * 0.02) << density;
  }
}

TEST(FftPayload, NothingKeptIsEmpty) {
  const auto nothing = random_spectrum(40, 0, 10, 3);
  EXPECT_TRUE(written(nothing).empty());
  EXPECT_EQ(read({}, 40, 10).bitmap, nothing.bitmap);
}

TEST(FftPayload, RefusesWhatIsWrong) {
  const auto spectrum = random_spectrum(40, 0.1, 10, 4);
  const Bytes good = written(spectrum);
  EXPECT_EQ(refusal(good, 40, 10), "accepted");
  const auto changed = [&](auto value, std::size_t at) {
    Bytes payload = good;
    store_value(std::span(payload), at, value);
    return refusal(payload, 40, 10);
  };
  const auto pairs = static_cast<std::uint32_t>(spectrum.codes.size() / 2);
  EXPECT_THAT(refusal(good, 40, 9), testing::HasSubstr("10 bits, expected 9"));
  EXPECT_NE(changed(pairs + 1, 0), "accepted");
  EXPECT_NE(changed(pairs - 1, 0), "accepted");
  EXPECT_THAT(changed(0u, 0), testing::HasSubstr("0 of 2560 pairs"));
  EXPECT_THAT(changed(4000u, 0), testing::HasSubstr("4000 of 2560 pairs"));
  EXPECT_THAT(changed(std::uint8_t{16}, 5), testing::HasSubstr("mantissa 16"));
  EXPECT_THAT(changed(std::uint16_t{1}, 6), testing::HasSubstr("must be 0"));
  EXPECT_THAT(changed(0u, 8), testing::HasSubstr("base 0"));
  EXPECT_THAT(changed(250u << 5, 8), testing::HasSubstr("invalid range float"));
  EXPECT_THAT(changed(220u << 5, 8), testing::HasSubstr("the maximum is"));
  EXPECT_THAT(changed(1024u, 12), testing::HasSubstr("1024 positive"));
  EXPECT_THAT(changed(0u, 16), testing::HasSubstr("code 10"));
  EXPECT_THAT(changed(1.5f, 20), testing::HasSubstr("energy is 1.5"));
  EXPECT_THAT(changed(std::numeric_limits<float>::quiet_NaN(), 20), testing::HasSubstr("nan"));
  EXPECT_THAT(changed(std::uint16_t{0xc001}, 24), testing::HasSubstr("unknown encoding 12"));
  EXPECT_THAT(changed(std::uint16_t{0x0fff}, 24), testing::HasSubstr("4095 of 2048 pairs"));
  EXPECT_THAT(changed(std::uint16_t{0xf005}, 24), testing::HasSubstr("the bitmap marks"));
  for (std::size_t length = 1; length < good.size(); ++length) {
    EXPECT_NE(refusal(Bytes(good.begin(), good.begin() + static_cast<long>(length)), 40, 10),
              "accepted");
  }
  Bytes longer = good;
  longer.push_back({});
  EXPECT_NE(refusal(longer, 40, 10), "accepted");
  EXPECT_NE(refusal(good, 39, 10), "accepted");
  EXPECT_NE(refusal(good, 0, 10), "accepted");

  Spectrum overflow = spectrum;
  overflow.head.overflow = true;
  EXPECT_THAT(refusal(written(overflow), 40, 10), testing::HasSubstr("overflowed"));
}

// Thousands of altered and cut payloads: an Error, or codes of finite values, two per bit.
TEST(FftPayload, HostileBytes) {
  std::mt19937 random(5);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::size_t words = 1 + random() % 40;
    const int bits = 4 + static_cast<int>(random() % 13);
    Bytes payload = written(
        random_spectrum(words, 0.3 / static_cast<double>(1 + random() % 20), bits, random()));
    damage(payload, random() % 4, random);
    // On the heap with its exact length, so that a sanitizer sees a read past the end.
    const Bytes exact(payload.begin(), payload.end());
    try {
      const auto spectrum = read(exact, words, bits);
      ++accepted;
      ASSERT_EQ(spectrum.codes.size(), 2 * kernels::count_pairs(spectrum.bitmap));
      std::vector<float> values(spectrum.codes.size());
      kernels::dequantize(spectrum.head.format, spectrum.codes, values);
      for (const float value : values) ASSERT_LE(std::abs(value), kMaxCoefficient);
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(accepted, 2000);
}

}  // namespace
}  // namespace thinreduce::fft_payload_test

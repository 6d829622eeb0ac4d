#include "thinreduce/methods/quantize/quantized_payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::quantized_payload_test {
namespace {

using Bytes = std::vector<std::byte>;

struct Content {
  std::vector<float> scales;
  std::vector<std::uint32_t> codes;
  bool operator==(const Content&) const = default;
};

// If skewed, most codes are the middle symbol.
Content random_content(const QuantizedFormat& format, bool skewed, unsigned seed) {
  std::mt19937 random(seed);
  Content content{std::vector<float>(format.blocks), std::vector<std::uint32_t>(format.elements)};
  for (auto& scale : content.scales) scale = static_cast<float>(random() % 1000) / 7;
  for (auto& code : content.codes) {
    code = skewed && random() % 8 != 0 ? format.symbols / 2 : random() % format.symbols;
  }
  return content;
}

Bytes written(const QuantizedFormat& format, const Content& content) {
  Bytes bytes;
  QuantizedPayload(format).write(
      content.scales,
      [&](std::size_t first, std::span<std::uint32_t> codes) {
        std::copy_n(content.codes.begin() + static_cast<std::ptrdiff_t>(first), codes.size(),
                    codes.begin());
      },
      bytes);
  return bytes;
}

Content read(const QuantizedFormat& format, const Bytes& bytes) {
  Content content{std::vector<float>(format.blocks), std::vector<std::uint32_t>(format.elements)};
  QuantizedPayload(format).read(bytes, "payload of rank 3", content.scales,
                                [&](std::size_t first, std::span<const std::uint32_t> codes) {
                                  ASSERT_LE(first + codes.size(), content.codes.size());
                                  std::copy(
                                      codes.begin(), codes.end(),
                                      content.codes.begin() + static_cast<std::ptrdiff_t>(first));
                                });
  return content;
}

TEST(QuantizedPayload, ComesBack) {
  for (const std::uint32_t symbols : {2u, 3u, 4u, 7u, 15u, 255u}) {
    for (const std::size_t elements : {0u, 1u, 17u, 2560u, 2561u, 10007u, 409600u, 409700u}) {
      if (elements > 300000 && symbols != 7) continue;
      for (const bool entropy : {false, true}) {
        for (const bool skewed : {false, true}) {
          const QuantizedFormat format{elements, (elements + 99) / 100, symbols, entropy};
          const auto content = random_content(format, skewed, 1);
          const auto bytes = written(format, content);
          ASSERT_LE(bytes.size(), QuantizedPayload(format).limit());
          ASSERT_TRUE(read(format, bytes) == content) << symbols << ' ' << elements;
          EXPECT_TRUE(entropy || bytes.size() == QuantizedPayload(format).limit());
          if (entropy && skewed && elements > 5000) {
            EXPECT_LT(bytes.size(), QuantizedPayload(format).limit() * 4 / 5);
          }
        }
      }
    }
  }
}

std::string refusal(const QuantizedFormat& format, const Bytes& bytes) {
  try {
    (void)read(format, bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 3"));
    return error.what();
  }
  return "accepted";
}

TEST(QuantizedPayload, RefusesWhatIsWrong) {
  const QuantizedFormat format{100, 2, 7, false};
  const auto good = written(format, random_content(format, false, 2));
  EXPECT_EQ(refusal(format, good), "accepted");
  const auto with = [&](auto value, std::size_t at) {
    Bytes bytes = good;
    store_value(std::span(bytes), at, value);
    return refusal(format, bytes);
  };
  EXPECT_THAT(with(-1.0f, 0), testing::HasSubstr("a scale of -1 for block 0"));
  EXPECT_THAT(with(std::numeric_limits<float>::infinity(), 4), testing::HasSubstr("inf"));
  EXPECT_THAT(with(std::numeric_limits<float>::quiet_NaN(), 4), testing::HasSubstr("nan"));
  EXPECT_THAT(with(std::uint32_t{1000}, 8), testing::HasSubstr("is cut"));
  EXPECT_THAT(with(std::uint8_t{0xff}, 12), testing::HasSubstr("a code of 7"));
  for (std::size_t length = 0; length < good.size(); ++length) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_NE(refusal(format, cut), "accepted");
  }
  Bytes longer = good;
  longer.push_back({});
  EXPECT_THAT(refusal(format, longer), testing::HasSubstr("too many"));
}

TEST(QuantizedPayload, HostileBytes) {
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::size_t elements = 1 + random() % 3000;
    const QuantizedFormat format{elements, 1 + elements / 64,
                                 std::array{3u, 7u, 15u, 4u}[random() % 4], random() % 2 == 0};
    Bytes bytes = written(format, random_content(format, random() % 2 == 0, random()));
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 20));
    const Bytes exact(bytes.begin(), bytes.end());
    try {
      const auto content = read(format, exact);
      for (const auto code : content.codes) ASSERT_LT(code, format.symbols);
      for (const auto scale : content.scales) ASSERT_TRUE(std::isfinite(scale));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace thinreduce::quantized_payload_test

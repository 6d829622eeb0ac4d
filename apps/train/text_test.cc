// Tests of text: its decoder, its windows and the real one.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "apps/train/dataset.h"
#include "apps/train/text_batches.h"
#include "tests/ranks.h"

namespace thinreduce::train::text_test {
namespace {

namespace fs = std::filesystem;

Bytes bytes_of_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Text, CharactersAreNumberedInTheOrderOfTheirCodePoints) {
  const Text text = decode_text(bytes_of_text("ba\u2014b\u00e9ab\U0001F40Bcb"), "t");
  EXPECT_EQ(text.alphabet, 6U);  // a b c, e with an accent, a dash, a whale
  EXPECT_EQ(text.train, (std::vector<std::uint8_t>{1, 0, 4, 1, 3, 0, 1, 5, 2}));
  EXPECT_EQ(text.test, (std::vector<std::uint8_t>{1}));
}

TEST(Text, RefusesWhatIsNotUtf8) {
  const auto refused = [](std::string_view text) {
    return thrown_text(ErrorCode::bad_input, [&] { (void)decode_text(bytes_of_text(text), "t"); });
  };
  for (const char* bad : {"ab\x80", "ab\xc3", "ab\xc3(", "ab\xe2\x80", "ab\xff", "ab\xc0\x80",
                          "ab\xf4\xbf\xbf\xbf"}) {
    EXPECT_NE(refused(bad).find("byte 2 is not UTF-8"), std::string::npos) << refused(bad);
  }
  EXPECT_NE(refused("").find("0 different characters"), std::string::npos);
  std::string many;
  for (char16_t point = 0x100; point < 0x201; ++point) {
    many += static_cast<char>(0xC0 | point >> 6U);
    many += static_cast<char>(0x80 | (point & 0x3F));
  }
  EXPECT_NE(refused(many).find("257 different characters"), std::string::npos) << refused(many);
}

TEST(MobyDick, IsTheRealOne) {
  if (!fs::exists(default_cache() / "text" / "data.txt")) {
    GTEST_SKIP() << "not fetched: thinreduce train --model gpt --fetch-only";
  }
  const Dataset data = load_dataset("text", default_cache());
  EXPECT_EQ(data.text.alphabet, 83U);
  EXPECT_EQ(data.text.train.size() + data.text.test.size(), 1'190'317U);
  EXPECT_EQ(data.text.test.size(), 119'031U);
}

// A text whose character i is i modulo 251, which no context divides.
Dataset counting(std::size_t characters) {
  Dataset data;
  data.name = "counting";
  data.text.alphabet = 251;
  for (std::size_t i = 0; i < characters; ++i) {
    data.text.train.push_back(static_cast<std::uint8_t>(i % 251));
  }
  data.text.test = data.text.train;
  return data;
}

TEST(TextBatches, WindowsLieInTheTextAndTargetsFollowTheirInputs) {
  for (const std::size_t context : {1U, 2U, 7U, 64U}) {
    for (const std::size_t characters : {2 * context, 2 * context + 1, 130U + context}) {
      const Dataset data = counting(characters);
      const std::size_t windows = count_windows(characters, context);
      ASSERT_GE(windows, 1U);
      TextBatches batches(data, {.seed = 4, .batch = windows}, context);
      std::vector<std::int64_t> inputs(windows * context);
      std::vector<std::int64_t> targets(windows * context);
      std::set<std::int64_t> offsets;
      for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
        batches.training(epoch, inputs, targets);
        std::set<std::int64_t> starts;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          EXPECT_EQ(targets[i], (inputs[i] + 1) % 251);
          if (i % context != 0) {
            EXPECT_EQ(inputs[i], (inputs[i - 1] + 1) % 251);
          } else {
            starts.insert(inputs[i]);
          }
        }
        EXPECT_EQ(starts.size(), windows) << "an epoch has every window once";
        offsets.insert(*starts.begin());
      }
      EXPECT_GT(offsets.size(), context > 1 ? 1U : 0U) << "epochs have offsets of their own";
      batches.test(0, inputs, targets);
      EXPECT_EQ(inputs[0], 0);
      EXPECT_EQ(targets.back(), static_cast<std::int64_t>(windows * context % 251));
    }
  }
  EXPECT_EQ(count_windows(0, 64), 0U);
  EXPECT_EQ(count_windows(127, 64), 0U);
  thrown_text(ErrorCode::bad_input, [] {
    const Dataset data = counting(127);
    TextBatches(data, {.batch = 1}, 64);
  });
}

}  // namespace
}  // namespace thinreduce::train::text_test

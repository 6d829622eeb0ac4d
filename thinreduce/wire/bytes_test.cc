#include "thinreduce/wire/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace thinreduce::bytes_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename Failing>
std::string broken_invariant(Failing&& failing) {
  try {
    failing();
  } catch (const BrokenInvariant& broken) {
    return broken.what();
  }
  return "nothing was thrown";
}

TEST(Bytes, AnAccessOutsideTheSpanIsABugThatNamesItsPlaceAndValues) {
  std::array<std::byte, 8> bytes{};
  EXPECT_EQ(load_value<std::uint32_t>(bytes, 4), 0u);
  const int line = __LINE__ + 1;
  const auto text = broken_invariant([&] { (void)load_value<std::uint32_t>(bytes, 6); });
  EXPECT_THAT(text, AllOf(HasSubstr("thinreduce/wire/bytes_test.cc:" + std::to_string(line)),
                          HasSubstr("load_value"), HasSubstr("(values 6, 4, 8)")));
  EXPECT_THAT(broken_invariant([&] { store_value(std::span(bytes), 8, std::uint8_t{1}); }),
              HasSubstr("(values 8, 1, 8)"));
  EXPECT_THAT(broken_invariant([] { ensure(false, "wings", 2, std::string_view("feathers")); }),
              HasSubstr("wings (values 2, 'feathers')"));
  EXPECT_THAT(broken_invariant([] { ensure(false, "pigs must fly"); }),
              AllOf(HasSubstr("bytes_test.cc"), HasSubstr("pigs must fly; this is a bug")));
}

TEST(Bytes, AReaderRefusesWhatIsCutOrTooLong) {
  const std::array<std::byte, 5> bytes{std::byte{1}};
  ByteReader reader(bytes, "payload of rank 3");
  EXPECT_EQ(reader.value<std::uint32_t>(), 1u);
  EXPECT_THROW(reader.finish(), Error);
  try {
    (void)reader.value<std::uint16_t>();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_STREQ(error.what(), "payload of rank 3 is cut: it needs 2 more bytes and has 1");
  }
  EXPECT_EQ(reader.left(), 1u);
}

}  // namespace
}  // namespace thinreduce::bytes_test

#include "thinreduce/engine/advice.h"

#include <gtest/gtest.h>

#include <string>

namespace thinreduce::advice_test {
namespace {

std::string advised(ErrorCode code, const std::string& text) {
  const Error error = with_advice(Error(code, text));
  EXPECT_EQ(error.code(), code);
  return error.what();
}

TEST(Advice, IsThatOfTheCause) {
  EXPECT_EQ(advised(ErrorCode::bad_frame, "rank 1 sent 3 bytes of tensor 'overflow'"),
            "rank 1 sent 3 bytes of tensor 'overflow'; run the same build on all ranks; if they "
            "do, bytes were altered in transit: check the network");
  EXPECT_EQ(advised(ErrorCode::mismatch, "rank 1 sent 7 bytes where 5 were expected"),
            "rank 1 sent 7 bytes where 5 were expected; submit the same buckets in the same order "
            "and run the same build on all ranks");
  EXPECT_EQ(advised(ErrorCode::lost_peer, "rank 1 has left"), "rank 1 has left");
}

TEST(Advice, OfAnOverflowIsNotThatOfAlteredBytes) {
  const Error error = with_advice(Error::overflow("cell 3 is inf"));
  EXPECT_EQ(error.code(), ErrorCode::bad_frame);
  EXPECT_TRUE(error.is_overflow());
  EXPECT_STREQ(error.what(),
               "cell 3 is inf; lower the learning rate or the loss scale, or change the method");
}

}  // namespace
}  // namespace thinreduce::advice_test

#include "thinreduce/engine/advice.h"

#include <gtest/gtest.h>

#include <string>

namespace thinreduce {
namespace {

std::string advised(ErrorCode code, const std::string& text) {
  const Error error = with_advice(Error(code, text));
  EXPECT_EQ(error.code(), code);
  return error.what();
}

TEST(Advice, IsThatOfTheCause) {
  EXPECT_EQ(advised(ErrorCode::bad_frame, "rank 1 sent 3 bytes"),
            "rank 1 sent 3 bytes; all ranks must run the same build over a network that alters "
            "nothing");
  EXPECT_EQ(advised(ErrorCode::bad_frame, "cell 3 is inf; a gradient overflowed"),
            "cell 3 is inf; a gradient overflowed; lower the learning rate or the loss scale");
  EXPECT_EQ(advised(ErrorCode::mismatch, "rank 1 sent 7 bytes where 5 were expected"),
            "rank 1 sent 7 bytes where 5 were expected; submit the same buckets in the same order "
            "and run the same build on all ranks");
  const std::string known = "it overflowed (lower the learning rate)";
  EXPECT_EQ(advised(ErrorCode::bad_frame, known), known);
  EXPECT_EQ(advised(ErrorCode::lost_peer, "rank 1 has left"), "rank 1 has left");
}

}  // namespace
}  // namespace thinreduce

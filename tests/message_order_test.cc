#include "python/module/message_order.h"

#include <gtest/gtest.h>

namespace thinreduce::message_order_test {
namespace {

using Way = python::MessageOrder::Way;
using python::MessageOrder;

constexpr int kPeer = 1;

class OneTrack : public testing::Test {
 protected:
  MessageOrder::Place start(Way way, bool is_long) {
    return order.start(kPeer, way, Channel::data, is_long);
  }
  MessageOrder order{2};
};

TEST_F(OneTrack, ALongMessageMayBeForgottenUntilALaterOneHasPassed) {
  for (const Way way : {Way::send, Way::receive}) {
    const auto first = start(way, true);
    const auto second = start(way, false);
    EXPECT_TRUE(order.may_be_forgotten(first));
    order.pass(second);
    EXPECT_FALSE(order.may_be_forgotten(first));
  }
}

TEST_F(OneTrack, AShortReceiveIsNeverForgotten) {
  start(Way::receive, true);
  EXPECT_FALSE(order.may_be_forgotten(start(Way::receive, false)));
}

TEST_F(OneTrack, AShortSendMayBeForgottenBehindALongOneOnly) {
  EXPECT_FALSE(order.may_be_forgotten(start(Way::send, false)));
  const auto before = start(Way::send, false);
  const auto long_one = start(Way::send, true);
  const auto behind = start(Way::send, false);
  EXPECT_FALSE(order.may_be_forgotten(before));
  EXPECT_TRUE(order.may_be_forgotten(behind));
  order.pass(long_one);
  EXPECT_FALSE(order.may_be_forgotten(behind));
}

TEST_F(OneTrack, AMessageThatNobodyWaitsForDelaysNoOther) {
  const auto long_one = start(Way::send, true);
  const auto behind = start(Way::send, false);
  order.forget(long_one);
  EXPECT_FALSE(order.may_be_forgotten(behind));
}

// The peer decides in which order messages of several tracks are sent, so a long one that starts
// later may be sent first.
TEST(SeveralTracks, AShortSendMayBeForgottenUntilALaterOneOfItsTrackHasPassed) {
  MessageOrder order(2);
  const auto statement = order.start(kPeer, Way::send, on_track(1, Channel::data), false);
  order.start(kPeer, Way::send, on_track(2, Channel::data), true);
  EXPECT_TRUE(order.may_be_forgotten(statement));
  order.pass(order.start(kPeer, Way::send, on_track(1, Channel::data), false));
  EXPECT_FALSE(order.may_be_forgotten(statement));
}

TEST(SeveralTracks, OtherPeersDoNotCount) {
  MessageOrder order(3);
  order.start(2, Way::send, on_track(2, Channel::data), true);
  EXPECT_FALSE(order.may_be_forgotten(order.start(kPeer, Way::send, Channel::data, false)));
}

}  // namespace
}  // namespace thinreduce::message_order_test

// The members of a new world: their records, and the verdict that follows from them.
#include "thinreduce/engine/membership.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/ranks.h"

namespace thinreduce::membership_test {
namespace {

Member member_at(MemberId id, std::uint64_t steps, StepPhase phase = StepPhase::begun) {
  return {.id = id, .steps = steps, .phase = phase, .old_world = {11, 12, 13}};
}

TEST(Membership, SaysWhoWasLostLeftAndJoined) {
  auto heir = member_at(13, 7);
  heir.took_over = {12};
  const auto change = describe_change({Member{.id = 50}, heir}, 1);
  EXPECT_EQ(change.steps, 7U);
  EXPECT_EQ(change.lost, std::vector<int>{0});
  EXPECT_EQ(change.left, std::vector<int>{1});
  EXPECT_EQ(change.joined, std::vector<int>{0});
  EXPECT_EQ(change.source, 1);
  EXPECT_EQ(change.text,
            "2 ranks go on after 7 steps; old rank 0 lost, with all gradient that was not sent "
            "yet; old rank 1 left and handed over the gradient that was not sent yet; new rank 0 "
            "joined");
}

TEST(Membership, AStepThatNotAllHaveReducedIsNoCompletedOne) {
  EXPECT_EQ(describe_change({member_at(11, 7, StepPhase::reduced), member_at(12, 6)}, 0).steps, 6U);
  EXPECT_EQ(describe_change({member_at(11, 7, StepPhase::reduced), member_at(12, 7)}, 0).steps, 7U);
  const auto text = thrown_text(ErrorCode::mismatch, [] {
    (void)describe_change({member_at(11, 7), member_at(12, 6)}, 0);
  });
  EXPECT_NE(text.find("commit every step"), std::string::npos) << text;
}

TEST(Membership, DamagedRecordsAreRefused) {
  auto member = member_at(11, 7);
  member.took_over = {14};
  member.heir_of = {12};
  const auto good = encode_member(member);
  EXPECT_EQ(decode_member(good, 3).took_over, member.took_over);
  EXPECT_EQ(decode_member(good, 3).heir_of, member.heir_of);
  for (std::size_t size = 0; size < good.size(); ++size) {
    if (size == good.size() - sizeof(MemberId)) continue;  // without the rank that it is heir of
    thrown_text(ErrorCode::bad_frame, [&] { (void)decode_member(std::span(good).first(size), 3); });
  }
}

}  // namespace
}  // namespace thinreduce::membership_test

#include "thinreduce/engine/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/ranks.h"
#include "thinreduce/error.h"

namespace thinreduce::agreement_test {
namespace {

Statement statement() {
  return {.id = {.method = 3, .bucket = 1, .step = 5, .elements = 100, .layout_hash = 77},
          .numbers = Numbers::good,
          .first_bad = 100,
          .fingerprint = 11,
          .last_result = 22};
}

TEST(Statement, RoundTrips) {
  for (const auto numbers :
       {Numbers::good, Numbers::gradient_not_finite, Numbers::second_moment_no_square,
        Numbers::gradient_missized, Numbers::second_moment_missized, Numbers::foreign_handle,
        Numbers::declined}) {
    Statement out = statement();
    out.numbers = numbers;
    out.figures = {.ready = 0.25F, .seconds = 1.5F, .busy = 0.5F, .wait = 0.75F};
    out.norm = 12.5F;
    const Statement in = decode_statement(encode_statement(out, 4), 4);
    EXPECT_EQ(in.id, out.id);
    EXPECT_EQ(in.numbers, out.numbers);
    const bool good = numbers == Numbers::good;
    EXPECT_EQ(in.first_bad, good ? 0 : out.first_bad);
    EXPECT_EQ(in.figures.ready, good ? 0.25F : 0);
    EXPECT_EQ(in.figures.seconds, good ? 1.5F : 0);
    EXPECT_EQ(in.figures.busy, good ? 0.5F : 0);
    EXPECT_EQ(in.figures.wait, good ? 0.75F : 0);
    EXPECT_EQ(in.fingerprint, out.fingerprint);
    EXPECT_EQ(in.last_result, out.last_result);
    EXPECT_EQ(in.norm, out.norm);
  }
  Statement unknown = statement();
  unknown.numbers = static_cast<Numbers>(7);
  EXPECT_NE(thrown_text(ErrorCode::bad_frame,
                        [&] { (void)decode_statement(encode_statement(unknown, 4), 4); }),
            "");
}

TEST(Statement, FiguresThatAreNoTimesDoNotTravel) {
  for (const float seconds : {-1.0F, INFINITY, NAN}) {
    Statement out = statement();
    out.figures.seconds = seconds;
    const Statement in = decode_statement(encode_statement(out, 4), 4);
    EXPECT_TRUE(in.figures.seconds >= 0 && std::isfinite(in.figures.seconds)) << seconds;
  }
}

// A rank's statement reaches the others one latency after it was sent, and a rank waits for all.
TEST(Agreement, TheLatencyFollowsFromTheWaitsWhicheverRankIsLate) {
  constexpr float kLatency = 0.25F;
  for (const std::vector<float>& starts : {std::vector<float>{0, 0}, std::vector<float>{0, 0.125F},
                                           std::vector<float>{1, 0, 1.125F, 0.5F}}) {
    std::vector<Statement> statements;
    for (std::size_t rank = 0; rank < starts.size(); ++rank) {
      float heard = 0;
      for (std::size_t peer = 0; peer < starts.size(); ++peer) {
        if (peer != rank) heard = std::max(heard, starts[peer] + kLatency);
      }
      Statement one = statement();
      one.figures = {.ready = 0, .seconds = 3, .busy = 0, .wait = heard - starts[rank]};
      statements.push_back(one);
    }
    const BucketTimes times = combine_figures(statements);
    EXPECT_EQ(times.latency, kLatency);
    EXPECT_EQ(times.seconds, 3);
    EXPECT_GE(times.wait, kLatency);
  }
  Statement early = statement();
  early.figures = {.ready = 0, .seconds = 3, .busy = 0, .wait = 2};
  Statement late = statement();
  late.figures = {.ready = 0, .seconds = 1, .busy = 0, .wait = 0.01F};
  EXPECT_EQ(combine_figures({early, late}).latency, 0) << "its wait does not show the latency";
}

TEST(Statement, NormsThatAreNoneAreRefused) {
  for (const float norm : {-1.0F, INFINITY, NAN}) {
    Statement out = statement();
    out.norm = norm;
    thrown_text(ErrorCode::bad_frame, [&] { (void)decode_statement(encode_statement(out, 4), 4); });
  }
}

TEST(Statement, EveryFlippedBitIsRefused) {
  const auto good = encode_statement(statement(), 0);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(thrown_text(ErrorCode::bad_frame, [&] { (void)decode_statement(bad, 0); }), "")
        << "bit " << bit;
  }
}

TEST(Agreement, NamesWhatDiffersTheRankAndBothValues) {
  struct Difference {
    void (*change)(Statement&);
    const char* said;
  };
  const Difference differences[] = {
      {[](Statement& s) { s.id.bucket = 9; }, "the bucket's id is 1 on rank 0 and 9 on rank 2"},
      {[](Statement& s) { s.id.elements = 99; }, "elements is 100 on rank 0 and 99 on rank 2"},
      {[](Statement& s) { s.id.step = 6; }, "the step is 5 on rank 0 and 6 on rank 2"},
      {[](Statement& s) { s.id.layout_hash = 78; }, "77 on rank 0 and 78 on rank 2"},
      {[](Statement& s) { s.id.method = 2; }, "the method is 3 on rank 0 and 2 on rank 2"},
      {[](Statement& s) { s.fingerprint = 12; }, "shared state is 11 on rank 0 and 12 on rank 2"},
      {[](Statement& s) { s.last_result = 23; }, "last mean is 22 on rank 0 and 23 on rank 2"},
  };
  EXPECT_NO_THROW(check_agreement(std::vector<Statement>(4, statement())));
  for (const Difference& difference : differences) {
    std::vector<Statement> ranks(4, statement());
    difference.change(ranks[2]);
    const auto text = thrown_text(ErrorCode::mismatch, [&] { check_agreement(ranks); });
    EXPECT_NE(text.find(difference.said), std::string::npos) << text;
  }
}

TEST(Agreement, NamesTheFirstRankWhoseGradientIsNotFinite) {
  std::vector<Statement> ranks(4, statement());
  ranks[3].numbers = ranks[1].numbers = Numbers::gradient_not_finite;
  ranks[1].first_bad = 42;
  const auto text = thrown_text(ErrorCode::bad_input, [&] { check_agreement(ranks); });
  EXPECT_NE(text.find("gradient of rank 1 is NaN or Inf at index 42"), std::string::npos) << text;
}

TEST(Agreement, NamesAnotherKindOfValuesByItsTensor) {
  BucketLayout layout{.id = 1, .elements = 0, .tensors = {}};
  layout.add("bias", {40});
  layout.add("weight", {60});
  layout.kind = "parameter";
  std::vector<Statement> ranks(4, statement());
  ranks[1].numbers = Numbers::gradient_not_finite;
  ranks[1].first_bad = 42;
  const auto text = thrown_text(ErrorCode::bad_input, [&] { check_agreement(ranks, layout); });
  EXPECT_NE(text.find("the parameter 'weight' of rank 1 is NaN or Inf at element 2;"),
            std::string::npos)
      << text;
}

TEST(Agreement, NamesTheFirstRankWhoseSecondMomentIsNone) {
  std::vector<Statement> ranks(4, statement());
  ranks[2].numbers = Numbers::second_moment_no_square;
  ranks[2].first_bad = 43;
  const auto text = thrown_text(ErrorCode::bad_input, [&] { check_agreement(ranks); });
  EXPECT_NE(text.find("second moment of rank 2 is negative, NaN or Inf at index 43"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace thinreduce::agreement_test

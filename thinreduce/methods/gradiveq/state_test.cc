// The state of GradiVeQ between steps.
#include <gtest/gtest.h>

#include "tests/gradiveq_world.h"
#include "thinreduce/error.h"

namespace thinreduce::state_test {
namespace {

TEST(GradiveqState, SavedStateResumesToTheSameBits) {
  for (const bool phases : {false, true}) {
    for (const unsigned moment : {1U, 3U, 4U, 9U}) {
      SCOPED_TRACE(testing::Message() << "saved after " << moment << " steps, phases " << phases);
      auto settings = quick(3, 5);
      settings.phases = phases;
      settings.feedback = !phases;
      settings.sample = settings.flush = 0.05;
      expect_saved_state_resumes(settings, moment);
    }
  }
}

TEST(GradiveqState, StateOfAnotherLayoutIsRefused) {
  GradiveqWorld small(1, quick(1, 5), layout_of({{16, 16}}));
  GradiveqWorld large(1, quick(1, 5), layout_of({{16, 16}, {32, 32}}));
  for (unsigned step = 0; step < 3; ++step) {
    (void)small.mean(normal_gradients(1, 256, step));
    (void)large.mean(normal_gradients(1, 1280, step));
  }
  auto archive = large.saved(0);
  archive.shows_back = true;
  EXPECT_THROW(small.method(0).state(archive), Error);
  // A basis cut short.
  GradiveqWorld other(1, quick(1, 5), layout_of({{16, 16}}));
  for (unsigned step = 0; step < 3; ++step) (void)other.mean(normal_gradients(1, 256, step));
  auto cut = other.saved(0);
  for (auto& [name, values] : cut.vectors) {
    if (name == "basis") values.pop_back();
  }
  cut.shows_back = true;
  EXPECT_THROW(other.method(0).state(cut), Error);
}

// Rank 1 is gone: rank 0 keeps what it held and its whole gradient.
TEST(GradiveqState, FailedExchangeKeepsTheGradient) {
  expect_failed_exchange_keeps_the_gradient(quick(2, 4));
}

TEST(GradiveqState, StateIsTwoBucketsAndTheBases) {
  auto settings = quick(2, 10);
  settings.slice = 64;
  GradiveqWorld ranks(2, settings, shapeless(64 * 500));
  for (unsigned step = 0; step < 5; ++step) (void)ranks.mean(normal_gradients(2, 64 * 500, step));
  std::size_t floats = 0;
  for (const auto& [name, values] : ranks.saved(0).vectors) floats += values.size();
  EXPECT_LE(floats, 2 * 64 * 500 + 64 * 8 + 64 * 64 + 8);
}

TEST(GradiveqState, WithoutFeedbackNothingIsKept) {
  auto settings = quick(1, 5);
  settings.feedback = false;
  GradiveqWorld ranks(2, settings, shapeless(4000));
  for (unsigned step = 0; step < 8; ++step) (void)ranks.mean(normal_gradients(2, 4000, step));
  for (const auto& [name, values] : ranks.saved(0).vectors) EXPECT_NE(name, "kept");
}

}  // namespace
}  // namespace thinreduce::state_test

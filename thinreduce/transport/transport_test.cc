#include "thinreduce/transport/transport.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "tests/ranks.h"
#include "thinreduce/transport/process.h"

namespace thinreduce::transport_test {
namespace {

using namespace std::chrono_literals;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Deadline, AVeryLongTimeIsNotOverAtOnce) {
  for (const double seconds : {1e10, 1e18, 1e300, kInfinity}) {
    EXPECT_GT(Deadline::after(Seconds(seconds)).at, Clock::now() + 24h) << seconds;
    const Deadline both = Deadline::after(WaitLimits(Seconds(seconds), Seconds(seconds)));
    EXPECT_GT(both.at, Clock::now() + 24h) << seconds;
    EXPECT_EQ(both.silence.count(), seconds);
  }
  // No patience at all would be of no use: 0 means forever.
  EXPECT_GT(Deadline::after(WaitLimits(1s, 0s)).at, Clock::now() + 24h);
  const Deadline none = Deadline::after(0s);
  EXPECT_LE(none.at, Clock::now());
}

TEST(Deadline, NegativeTimesAndNanAreRefused) {
  for (const double seconds : {-1.0, -1e-9, -kInfinity, kNan}) {
    const auto text =
        thrown_text(ErrorCode::bad_input, [&] { (void)Deadline::after(Seconds(seconds)); });
    EXPECT_NE(text.find("must be at least 0"), std::string::npos) << text;
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { WaitLimits(Seconds(seconds)).check(); })
                  .find("timeout is"),
              std::string::npos);
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { WaitLimits(1s, Seconds(seconds)).check(); })
                  .find("patience is"),
              std::string::npos);
  }
  thrown_text(ErrorCode::bad_input, [] { WaitLimits(0s).check(); });
  EXPECT_NO_THROW(WaitLimits(Seconds(kInfinity), Seconds(kInfinity)).check());
  EXPECT_NO_THROW(WaitLimits(1s, 0s).check());
}

// Returns the exit code of a forked child that runs `work`.
template <typename Work>
int code_in_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Process, DescriptorsCloseInChildrenAndStayOpenHere) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  close_in_children(ends[0]);
  const auto both_open = [&] {
    char byte = 0;
    return ::write(ends[1], &byte, 1) == 1 && ::read(ends[0], &byte, 1) == 1;
  };
  EXPECT_EQ(code_in_child([&] { return ::close(ends[0]) == 0 ? 1 : 0; }), 0);
  EXPECT_TRUE(both_open());
  close_here(ends[0]);
  EXPECT_NE(::close(ends[0]), 0);
  ::close(ends[1]);
}

TEST(Process, AnObjectIsDestroyedWhereItWasMade) {
  struct Counts {
    explicit Counts(int& count) : destroyed(count) {}
    ~Counts() { ++destroyed; }
    int& destroyed;
  };
  int destroyed = 0;
  auto owned = std::make_unique<OwnedHere<Counts>>(std::make_unique<Counts>(destroyed));
  EXPECT_EQ(code_in_child([&] {
              owned.reset();
              return destroyed;
            }),
            0);
  owned.reset();
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace thinreduce::transport_test

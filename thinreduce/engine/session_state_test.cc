// The state of a session between steps: it is saved and loaded, and bad files are refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce::session_state_test {
namespace {

class SessionStates : public Sessions {};
INSTANTIATE_TEST_SUITE_P(All, SessionStates, testing::ValuesIn(every_method_and_world()),
                         session_case_name);

TEST_P(SessionStates, ResumedStateContinuesToTheSameBits) {
  const Folder folder;
  const BucketLayout layout = mixed_layout(0);
  const std::uint64_t saved_at = steps(2);
  const std::uint64_t end = steps(5);
  std::vector<std::vector<float>> straight(static_cast<std::size_t>(world()));
  std::vector<std::vector<float>> resumed(static_cast<std::size_t>(world()));
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    const auto bucket = session.add_bucket(layout);
    for (std::uint64_t step = 0; step < end; ++step) {
      if (step == saved_at) session.save(state_path(folder, session.rank()));
      straight[rank] = gradient(layout.elements, session.rank(), step);
      session.submit(bucket, straight[rank]).get();
    }
  });
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    session.load(state_path(folder, session.rank()));
    const auto bucket = session.add_bucket(layout);
    for (std::uint64_t step = saved_at; step < end; ++step) {
      resumed[rank] = gradient(layout.elements, session.rank(), step);
      EXPECT_EQ(session.submit(bucket, resumed[rank]).get().step, step + 1);
    }
  });
  EXPECT_EQ(straight, resumed);
}

TEST_P(SessionStates, LoadingIntoARunningSessionRewindsIt) {
  const Folder folder;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    auto first = gradient(5000, session.rank(), 0);
    session.reduce(1, first);
    session.save(state_path(folder, session.rank()));
    auto once = gradient(5000, session.rank(), 1);
    session.reduce(1, once);
    session.load(state_path(folder, session.rank()));
    auto again = gradient(5000, session.rank(), 1);
    EXPECT_EQ(session.reduce(1, again).step, 2U);
    EXPECT_EQ(once, again);
  });
}

TEST(SessionState, StateFilesThatDoNotFitAreRefused) {
  const Folder folder;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto values = gradient(3000, session.rank(), 0);
    session.reduce(0, values);
    session.save(state_path(folder, session.rank()));
  });
  const auto good = state_path(folder, 0);
  const auto load = [&](int world, const std::string& spec, const std::filesystem::path& file) {
    auto thrown = try_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = spec});
      if (session.rank() == 0) session.load(file);
    });
    return thrown[0];
  };
  EXPECT_EQ(load(2, "topk", good), nullptr);
  EXPECT_NE(error_text(load(3, "topk", good), ErrorCode::bad_state).find("world of 2"),
            std::string::npos);
  EXPECT_NE(error_text(load(2, "fp32", good), ErrorCode::bad_state).find("topk"),
            std::string::npos);
  EXPECT_NE(error_text(load(2, "topk", state_path(folder, 1)), ErrorCode::bad_state)
                .find("belongs to rank 1"),
            std::string::npos);
  EXPECT_NE(
      error_text(load(2, "topk", folder.path / "missing"), ErrorCode::unavailable).find("missing"),
      std::string::npos);
  error_text(load(2, "topk", folder.path), ErrorCode::unavailable);
  // Cut anywhere, or altered anywhere.
  std::ifstream in(good, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto bad = folder.path / "bad";
  for (std::size_t at = 0; at < bytes.size(); at += at < 200 ? 1 : 997) {
    std::ofstream(bad, std::ios::binary) << bytes.substr(0, at);
    error_text(load(2, "topk", bad), ErrorCode::bad_state);
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    std::ofstream(bad, std::ios::binary) << altered;
    error_text(load(2, "topk", bad), ErrorCode::bad_state);
  }
}

TEST(SessionState, AnUnwritableStateFileIsNamed) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    const auto text = thrown_text(ErrorCode::unavailable,
                                  [&] { session.save("/nonexistent/folder/rank0.state"); });
    EXPECT_NE(text.find("/nonexistent/folder/rank0.state"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace thinreduce::session_state_test

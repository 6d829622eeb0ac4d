#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/ranks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/error.h"

namespace thinreduce::redistribute_test {
namespace {

BucketLayout layout_of(const std::string& spec) {
  return {.id = 3,
          .elements = 64 * 33 + 33 + 40 * 50,
          .tensors = {{.name = "weight", .shape = {64, 33}, .offset = 0},
                      {.name = "bias", .shape = {33}, .offset = 64 * 33},
                      {.name = "last", .shape = {40, 50}, .offset = 64 * 33 + 33}},
          .spec = spec};
}

std::vector<float> gradient(std::size_t size, int rank, int step) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = std::sin(static_cast<float>(i * (static_cast<std::size_t>(rank) + 2) + 1) *
                         static_cast<float>(step + 1));
  }
  return values;
}

std::vector<SessionState> redistributed(const std::vector<SessionState>& states, int world) {
  std::vector<std::vector<std::byte>> bytes;
  for (const SessionState& state : states) bytes.push_back(encode_state(state));
  std::vector<SessionState> result;
  for (const auto& state : redistribute(bytes, world)) {
    result.push_back(decode_state(state, "state"));
  }
  return result;
}

// Some compressed steps of a world, from the given states on if there are any; the states at its
// end.
std::vector<SessionState> run(int world, const std::string& spec,
                              const std::vector<SessionState>& from = {}) {
  std::mutex mutex;
  std::vector<SessionState> states(static_cast<std::size_t>(world));
  std::vector<std::vector<float>> ends(states.size());
  run_ranks(world, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.check_replicas_every = 1, .momentum_inside_ok = true});
    const auto rank = static_cast<std::size_t>(session.rank());
    const BucketLayout layout = layout_of(spec);
    const auto bucket = session.add_bucket(layout);
    if (!from.empty()) session.load_bytes(encode_state(from[rank]));
    std::vector<float> values;
    const auto steps = static_cast<int>(steps_of(spec, 4));
    for (int step = 0; step < steps; ++step) {
      values = gradient(layout.elements, session.rank(), step);
      session.submit(bucket, values).get();
    }
    const auto bytes = session.save_bytes();
    const std::lock_guard lock(mutex);
    states[rank] = decode_state(bytes, "state");
    ends[rank] = values;
  });
  for (const auto& end : ends) {
    EXPECT_EQ(std::memcmp(end.data(), ends[0].data(), end.size() * sizeof(float)), 0);
  }
  return states;
}

// Returns the sum over all ranks and elements of every summed field.
std::map<std::string, double> sums(const std::vector<SessionState>& states) {
  std::map<std::string, double> result;
  for (const SessionState& state : states) {
    for (const StateField& field : split_fields(state.buckets.at(3))) {
      if (field.kind != FieldKind::summed) continue;
      for (const float value : field.floats()) result[field.name] += static_cast<double>(value);
    }
  }
  return result;
}

// A spec, and the sizes of the old and the new world.
struct Change {
  std::string spec;
  int from = 1;
  int to = 1;
};

// Returns every method at its default in several changes, its other words and some numbers in one.
std::vector<Change> changes() {
  std::vector<Change> all;
  const std::vector<std::string> defaults = default_specs();
  for (const std::string& spec : law_specs()) {
    if (std::ranges::count(defaults, spec) == 0) {
      all.push_back({spec, 3, 2});
      continue;
    }
    for (const auto& [from, to] : {std::pair(4, 2), {2, 4}, {3, 1}, {1, 3}, {5, 8}, {8, 5}}) {
      if (std::max(from, to) <= (kSanitized ? 4 : 8)) all.push_back({spec, from, to});
    }
  }
  for (const char* spec : {"sketch:momentum=0.9", "dqsg:feedback=on,collective=owner"}) {
    all.push_back({spec, 2, 4});
  }
  return all;
}

class Redistributed : public testing::TestWithParam<Change> {};

TEST_P(Redistributed, StatesConserveTheSumAndTheNewWorldGoesOn) {
  const Change& change = GetParam();
  const auto old = run(change.from, change.spec);
  const auto states = redistributed(old, change.to);
  ASSERT_EQ(states.size(), static_cast<std::size_t>(change.to));
  const auto before = sums(old);
  const auto after = sums(states);
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, sum] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_NEAR(after.at(name), sum, 1e-3 * (1 + std::abs(sum))) << name;
  }
  run(change.to, change.spec, states);
}

INSTANTIATE_TEST_SUITE_P(Laws, Redistributed, testing::ValuesIn(changes()), [](const auto& test) {
  const Change& change = test.param;
  return fmt::format("{}_{}_from_{}_to_{}", test.index, test_name(change.spec), change.from,
                     change.to);
});

// Otherwise the law would hold because there is nothing to conserve.
TEST(Redistribute, RanksOweSomethingInEveryField) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> owing{
      {"fp32", {}},
      {"gradiveq", {"kept"}},
      {"gradiveq+dqsg", {"kept", "owed"}},
      {"fft", {"residual spectrum"}},
      {"variance", {"residual", "squares"}},
      {"dqsg:feedback=on", {"residual"}},
      {"terngrad", {}},
      {"sketch:momentum=0.9", {"momentum", "residual"}},
      {"topk", {"residual"}},
      {"powersgd", {"residual"}},
      {"demo", {"residual"}}};
  for (const auto& [spec, names] : owing) {
    const auto found = sums(run(2, spec));
    ASSERT_EQ(found.size(), names.size()) << spec;
    for (const std::string& name : names) EXPECT_NE(found.at(name), 0) << spec << ": " << name;
  }
}

// State that is not summed is the same as on some old rank.
TEST(Redistribute, WhatNobodyOwesIsCopied) {
  for (const auto& [spec, name] : {std::pair("gradiveq:warmup=2", "mean"), {"variance", "since"}}) {
    const auto values = [&](const SessionState& state) {
      for (const StateField& field : split_fields(state.buckets.at(3))) {
        if (field.name == name) return field.floats();
      }
      throw BrokenInvariant("the state has such a field");
    };
    const auto old = run(4, spec);
    const auto states = redistributed(old, 2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(values(states[rank]), values(old[rank])) << spec;
    }
    EXPECT_NE(values(old[0]), std::vector<float>(values(old[0]).size())) << spec;
  }
}

// A state may come from anywhere: fields of another kind under the same name are refused.
TEST(Redistribute, ForgedFieldsAreRefused) {
  auto states = run(2, "gradiveq:warmup=2");
  auto& bucket = states[1].buckets.at(3);
  const auto good = split_fields(bucket);
  for (const FieldKind kind : {FieldKind::summed, FieldKind::replicated, FieldKind::number}) {
    auto fields = good;
    for (StateField& field : fields) {
      if (field.kind == FieldKind::section)
        field = {.name = field.name, .kind = kind, .values = {}};
    }
    bucket.fields = join_fields(fields);
    EXPECT_NE(thrown_text(ErrorCode::bad_state, [&] { (void)redistributed(states, 3); })
                  .find("different"),
              std::string::npos);
  }
}

// Two old ranks keep one layer each; every layer is with its keeper in any new world.
TEST(Redistribute, SectionsMoveToTheirNewKeepers) {
  const auto sections = [](const SessionState& state) {
    std::vector<std::vector<std::byte>> result;
    for (const StateField& field : split_fields(state.buckets.at(3))) {
      if (field.kind == FieldKind::section) result.push_back(field.values);
    }
    return result;
  };
  const auto old = run(2, "gradiveq:warmup=2");
  const std::vector<std::vector<std::byte>> kept = {sections(old[0]).at(0), sections(old[1]).at(1)};
  EXPECT_FALSE(kept[0].empty());
  EXPECT_FALSE(kept[1].empty());
  EXPECT_TRUE(sections(old[0]).at(1).empty());
  EXPECT_EQ(sections(redistributed(old, 1)[0]), kept);
  const auto three = redistributed(old, 3);
  EXPECT_EQ(sections(three[1]).at(1), kept[1]);
  EXPECT_TRUE(sections(three[2]).at(0).empty());
  EXPECT_TRUE(sections(three[2]).at(1).empty());
}

// Ranks that owe the same owe it each.
TEST(Redistribute, DebtsThatAreAlikeAreAdded) {
  auto states = run(2, "topk:density=0.05");
  states[1].buckets = states[0].buckets;
  const auto before = sums(states);
  const auto after = sums(redistributed(states, 1));
  EXPECT_NEAR(after.at("residual"), before.at("residual"), 1e-3);
  EXPECT_GT(std::abs(before.at("residual")), 1e-3);
}

TEST(Redistribute, RefusesWhatIsNotAWholeWorld) {
  const auto states = run(2, "topk");
  EXPECT_NE(thrown_text(ErrorCode::bad_state, [] { (void)redistributed({}, 2); })
                .find("no states were given"),
            std::string::npos);
  EXPECT_NE(thrown_text(ErrorCode::bad_state, [&] { (void)redistributed({states[0]}, 2); })
                .find("world of 2"),
            std::string::npos);
  EXPECT_NE(thrown_text(ErrorCode::bad_state,
                        [&] {
                          (void)redistributed({states[0], states[0]}, 3);
                        })
                .find("rank 1 is missing"),
            std::string::npos);
  auto other_step = states;
  ++other_step[1].buckets.begin()->second.step;
  EXPECT_NE(thrown_text(ErrorCode::bad_state, [&] { (void)redistributed(other_step, 3); })
                .find("same step"),
            std::string::npos);
}

TEST(Redistribute, AStateOfAnotherSpecOrWorldIsRefused) {
  const auto states = run(2, "topk");
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.check_replicas_every = 1});
    session.load_bytes(encode_state(states[static_cast<std::size_t>(session.rank())]));
    const BucketLayout layout = layout_of("topk:density=0.5");
    auto values = gradient(layout.elements, session.rank(), 0);
    thrown_text(ErrorCode::bad_state,
                [&] { session.submit(session.add_bucket(layout), values).get(); });
  });
  run_ranks(1, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.check_replicas_every = 1});
    thrown_text(ErrorCode::bad_state, [&] { session.load_bytes(encode_state(states[0])); });
  });
}

}  // namespace
}  // namespace thinreduce::redistribute_test

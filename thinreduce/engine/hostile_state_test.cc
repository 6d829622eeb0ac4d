// A state file is untrusted even when its checksum is right: every altered field is refused, or the
// session that loaded it goes on to finite means.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"

namespace thinreduce::hostile_state_test {
namespace {

using Bytes = std::vector<std::byte>;
using Mutate = std::function<void(Bytes&)>;
constexpr int kWorld = 2;

// Replaces all values of a field by one.
template <typename T>
Mutate all(T value) {
  return [value](Bytes& bytes) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      std::memcpy(&bytes[at], &value, sizeof(T));
    }
  };
}
template <typename T>
Mutate last(T value) {
  return [value](Bytes& bytes) {
    if (bytes.size() >= sizeof(T)) std::memcpy(&bytes[bytes.size() - sizeof(T)], &value, sizeof(T));
  };
}
Mutate resized(std::ptrdiff_t by) {
  return [by](Bytes& bytes) {
    const auto size = static_cast<std::ptrdiff_t>(bytes.size()) + by;
    bytes.resize(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, size)));
  };
}

struct Mutation {
  const char* name;
  Mutate mutate;
  bool refused = false;  // another number of values, or one that is not finite
};

std::vector<Mutation> mutations_of(FieldKind kind) {
  std::vector<Mutation> mutations{{"empty", [](Bytes& bytes) { bytes.clear(); }, true},
                                  {"random", [](Bytes& bytes) {
                                     std::mt19937 random(3);
                                     for (auto& byte : bytes)
                                       byte = static_cast<std::byte>(random());
                                   }}};
  if (kind == FieldKind::number) {
    mutations.push_back({"longer", resized(8), true});
    mutations.push_back({"all ones", all(~std::uint64_t{0})});
    mutations.push_back({"one", all(std::uint64_t{1})});
    mutations.push_back({"zero", all(std::uint64_t{0})});
    for (const double value : {std::nan(""), -1.0, 1e300, 0.5}) {
      mutations.push_back({"real", all(value)});
    }
    return mutations;
  }
  constexpr auto kMax = std::numeric_limits<float>::max();
  mutations.push_back({"shorter", resized(-4), true});
  mutations.push_back({"longer", resized(4), true});
  mutations.push_back({"NaN", last(std::nanf("")), true});
  mutations.push_back({"Inf", last(std::numeric_limits<float>::infinity()), true});
  mutations.push_back({"huge", all(kMax)});
  mutations.push_back({"one huge", last(-kMax)});
  mutations.push_back({"negative", all(-1.0F)});
  return mutations;
}

// One altered state.
struct Altered {
  std::string what;
  Bytes state;
  bool refused = false;
};

// Calls `visit` for every way to alter one field of bucket 0 of a state.
void for_mutations(const Bytes& saved, const std::function<void(const Altered&)>& visit) {
  SessionState state = decode_state(saved, "a saved state");
  BucketState& bucket = state.buckets.at(0);
  const auto fields = split_fields(bucket);
  const auto try_each = [&](const std::vector<StateField>& among, const auto& rejoin) {
    for (std::size_t i = 0; i < among.size(); ++i) {
      if (among[i].kind == FieldKind::section) continue;
      for (const Mutation& mutation : mutations_of(among[i].kind)) {
        auto altered = among;
        mutation.mutate(altered[i].values);
        if (altered[i].values == among[i].values) continue;
        bucket.fields = rejoin(altered);
        const std::string what = fmt::format("{} {}", mutation.name, among[i].name);
        // Before the first samples and the first step these have no values, and a rank that has
        // joined owes nothing.
        const bool owes_nothing = among[i].kind == FieldKind::summed && altered[i].values.empty();
        const bool may_be = owes_nothing || what == "empty moments" || what == "empty velocity";
        visit({what, encode_state(state), mutation.refused && !may_be});
      }
    }
  };
  try_each(fields, join_fields);
  for (std::size_t section = 0; section < fields.size(); ++section) {
    if (fields[section].kind != FieldKind::section) continue;
    BucketState inner;
    inner.fields = fields[section].values;
    try_each(split_fields(inner), [&](const std::vector<StateField>& altered) {
      auto whole = fields;
      whole[section].values = join_fields(altered);
      return join_fields(whole);
    });
  }
}

std::vector<Bytes> saved_states(const std::string& spec, const BucketLayout& layout) {
  std::vector<Bytes> saved(kWorld);
  run_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = spec, .momentum_inside_ok = true});
    const auto bucket = session.add_bucket(layout);
    for (std::uint64_t step = 0; step < steps_of(spec, 3); ++step) {
      auto values = gradient(layout.elements, session.rank(), step);
      session.submit(bucket, values).get();
    }
    saved[static_cast<std::size_t>(session.rank())] = session.save_bytes();
  });
  return saved;
}

// Loads the states and takes some steps. Returns what rank 0 threw.
std::exception_ptr resume(const std::string& spec, const BucketLayout& layout,
                          const std::vector<Bytes>& states) {
  return try_ranks(kWorld, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = spec, .momentum_inside_ok = true});
    try {
      session.load_bytes(states[static_cast<std::size_t>(session.rank())]);
    } catch (const Error&) {
      session.abandon("a state was refused");
      throw;
    }
    const auto bucket = session.add_bucket(layout);
    for (std::uint64_t step = 0; step < 3; ++step) {
      auto values = gradient(layout.elements, session.rank(), step);
      session.submit(bucket, values).get();
      EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
    }
    (void)session.save_bytes();
  })[0];
}

std::vector<std::string> hostile_specs() {
  std::vector<std::string> specs = default_specs();
  for (const char* spec :
       {"dqsg:feedback=on", "dqsg:clip=2,collective=root", "ndqsg:feedback=on", "qsgd:feedback=on",
        "terngrad:feedback=on", "fft:theta=auto", "sketch:momentum=0.9", "variance:tau=0.1",
        "gradiveq:warmup=2,feedback=off",
        "gradiveq:sampling=phases,warmup=2,collect=5,interval=10,feedback=off"}) {
    specs.emplace_back(spec);
  }
  return specs;
}

class HostileState : public testing::TestWithParam<std::string> {};

TEST_P(HostileState, IsRefusedOrReducesToFiniteMeans) {
  const std::string& spec = GetParam();
  BucketLayout layout{.id = 0, .elements = 0, .tensors = {}};
  layout.add("conv.weight", {16, 8, 3, 3});
  layout.add("conv.bias", {16});
  layout.add("fc.weight", {24, 40});
  const auto saved = saved_states(spec, layout);
  EXPECT_EQ(resume(spec, layout, saved), nullptr);
  for_mutations(saved[0], [&](const Altered& altered) {
    SCOPED_TRACE(altered.what);
    const auto thrown = resume(spec, layout, {altered.state, saved[1]});
    if (altered.refused) {
      error_text(thrown, ErrorCode::bad_state);
      return;
    }
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
    }
  });
}

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, HostileState, testing::ValuesIn(hostile_specs()), case_name);

}  // namespace
}  // namespace thinreduce::hostile_state_test

// States of several ranks, with checksums put right, turned into states of another world.
#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::fuzz {
namespace {

// The last state takes what is left.
Bytes next_part(Input& input, bool last) {
  const auto length = input.value<std::uint16_t>();
  return copy(last ? input.rest() : input.take(length));
}

Bytes state_from(Input& input, int rank, int world, bool whole) {
  Bytes part = next_part(input, rank == world - 1);
  if (whole) {
    const auto sum = checksum(std::span<const std::byte>(part));
    put(part, sum);
    return part;
  }
  SessionState state{.world = world, .rank = rank, .settings = "fp32", .buckets = {}};
  state.buckets[0] = {.step = 3, .elements = 4, .fields = std::move(part)};
  return encode_state(std::move(state));
}

std::vector<StateField> fields_of(int rank, int world) {
  const auto bytes = [](std::initializer_list<float> values) {
    Bytes out;
    for (const float value : values) put(out, value);
    return out;
  };
  Bytes number;
  put(number, std::uint64_t{42});
  std::vector<StateField> fields;
  fields.push_back({"residual", FieldKind::summed, bytes({1, 2, 3, static_cast<float>(rank)})});
  fields.push_back({"basis", FieldKind::replicated, bytes({0.5F, 0.25F})});
  fields.push_back({"count", FieldKind::number, number});
  for (int section = 0; section < 3; ++section) {
    const bool keeps = section % world == rank;
    fields.push_back({"part", FieldKind::section, keeps ? join_fields({fields[0]}) : Bytes{}});
  }
  return fields;
}

}  // namespace

void run(Input input) {
  const auto shape = input.value<std::uint8_t>();
  const bool whole = (shape & 1U) != 0;
  const int old_world = 1 + (shape >> 1U) % 4;
  const int new_world = 1 + (shape >> 3U) % 4;
  std::vector<Bytes> states;
  for (int rank = 0; rank < old_world; ++rank) {
    states.push_back(state_from(input, rank, old_world, whole));
  }
  std::vector<Bytes> result;
  if (!accepts([&] { result = redistribute(states, new_world); })) return;
  expect(result.size() == static_cast<std::size_t>(new_world), "every new rank gets a state");
  for (int rank = 0; rank < new_world; ++rank) {
    const SessionState state = decode_state(result[static_cast<std::size_t>(rank)], "new state");
    expect(state.rank == rank && state.world == new_world, "a new state is of its rank");
    for (const auto& [id, bucket] : state.buckets) static_cast<void>(split_fields(bucket));
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (int world = 1; world <= 3; ++world) {
    for (const bool whole : {false, true}) {
      Bytes seed;
      put(seed, static_cast<std::uint8_t>((whole ? 1 : 0) + (world - 1) * 2 + world % 4 * 8));
      for (int rank = 0; rank < world; ++rank) {
        Bytes part = join_fields(fields_of(rank, world));
        if (whole) {
          SessionState state{.world = world, .rank = rank, .settings = "fp32", .buckets = {}};
          state.buckets[0] = {.step = 3, .elements = 4, .fields = part};
          part = encode_state(state);
          part.resize(part.size() - sizeof(std::uint64_t));
        }
        put(seed, static_cast<std::uint16_t>(part.size()));
        put_bytes(seed, part);
      }
      all.push_back(seed);
    }
  }
  return all;
}

}  // namespace thinreduce::fuzz

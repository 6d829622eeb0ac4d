// Saved states of every method, with the checksum put right: each is refused, or the session that
// loaded it goes on to finite means.
#include "thinreduce/engine/state_file.h"

#include <algorithm>
#include <map>
#include <memory>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzzed_specs.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::fuzz {
namespace {

constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

BucketLayout state_layout() {
  BucketLayout layout;
  layout.add("conv.weight", {8, 4, 3, 3});
  layout.add("bias", {5});
  return layout;
}

std::unique_ptr<Session> open_session(const std::string& spec) {
  return std::make_unique<Session>(
      std::move(connect_threads(1)[0]),
      SessionOptions{.spec = spec, .min_elements = 64, .momentum_inside_ok = true});
}

void reduce(Session& session, const BucketHandle& bucket, unsigned step) {
  auto values = gradient_of(bucket.layout().elements, step);
  session.submit(bucket, values).get();
  expect(kernels::first_nonfinite(values) == values.size(), "means are finite");
}

std::string spec_with_key(std::uint16_t key) {
  return key == key_of("auto") ? "auto" : spec_of(key);
}

// Returns the state of an honest session after some steps.
const SessionState& honest_state(const std::string& spec) {
  static std::map<std::string, SessionState> known;
  auto found = known.find(spec);
  if (found == known.end()) {
    const auto session = open_session(spec);
    const auto bucket = session->add_bucket(state_layout());
    for (unsigned step = 0; step < 5; ++step) reduce(*session, bucket, step);
    found = known.emplace(spec, decode_state(session->save_bytes(), "own state")).first;
  }
  return found->second;
}

// Changes fields of an honest state as the input says.
Bytes edited_state(Input& input, const std::string& spec) {
  SessionState state = honest_state(spec);
  BucketState& bucket = state.buckets.at(0);
  auto fields = split_fields(bucket);
  while (input.left() > 0 && !fields.empty()) {
    Bytes& values = fields[input.value<std::uint8_t>() % fields.size()].values;
    const auto change = input.value<std::uint8_t>() % 8;
    const std::size_t at = input.value<std::uint16_t>();
    if (change == 0) {
      values.resize(values.size() - std::min<std::size_t>(values.size(), at));
    } else if (change == 1) {
      values.resize(values.size() + at);
    } else {
      const auto given = input.take(std::size_t{1} << (change % 4));
      if (values.size() < given.size()) continue;
      const std::size_t place = at * given.size() % (values.size() - given.size() + 1);
      std::copy(given.begin(), given.end(), values.begin() + static_cast<std::ptrdiff_t>(place));
    }
  }
  bucket.fields = join_fields(fields);
  return encode_state(std::move(state));
}

// Returns the input as a state: all of its bytes with a right checksum, or the fields of one
// bucket in a state that is otherwise right.
Bytes state_from(Input& input, bool whole, Session& session) {
  if (whole) {
    Bytes bytes = copy(input.rest());
    const auto sum = checksum(std::span<const std::byte>(bytes));
    put(bytes, sum);
    return bytes;
  }
  SessionState state = decode_state(session.save_bytes(), "own state");
  const auto step = input.value<std::uint64_t>();
  state.buckets[0] = {step, state_layout().elements, copy(input.rest())};
  return encode_state(std::move(state));
}

}  // namespace

void run(Input input) {
  const std::string spec = spec_with_key(input.value<std::uint16_t>());
  const auto mode = input.value<std::uint8_t>() % 4;
  const auto session = open_session(spec);
  const Bytes state =
      mode >= 2 ? edited_state(input, spec) : state_from(input, mode == 0, *session);
  accepts([&] {
    session->load_bytes(state);
    const auto bucket = session->add_bucket(state_layout());
    reduce(*session, bucket, 1);
    reduce(*session, bucket, 2);
    const Bytes saved = session->save_bytes();
    static_cast<void>(decode_state(saved, "own state"));
  });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  std::vector<std::string> specs = fuzzed_specs();
  specs.emplace_back("auto");
  for (const std::string& spec : specs) {
    const SessionState& decoded = honest_state(spec);
    const Bytes state = encode_state(decoded);
    Bytes whole;
    put(whole, key_of(spec));
    put(whole, std::uint8_t{0});
    put_bytes(whole, std::span(state).first(state.size() - kChecksumBytes));
    all.push_back(whole);
    Bytes fields;
    put(fields, key_of(spec));
    put(fields, std::uint8_t{1});
    put(fields, decoded.buckets.at(0).step);
    put_bytes(fields, decoded.buckets.at(0).fields);
    all.push_back(fields);
    Bytes edits;
    put(edits, key_of(spec));
    put(edits, std::uint8_t{2});
    for (std::uint8_t field = 0; field < 3; ++field) {
      put(edits, field);
      put(edits, std::uint8_t{2});
      put(edits, std::uint16_t{1});
      put(edits, std::uint32_t{0x3F800000});
    }
    all.push_back(edits);
  }
  return all;
}

}  // namespace thinreduce::fuzz

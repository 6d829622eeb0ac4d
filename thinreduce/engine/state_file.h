// A session's state on disk: one file per rank, little-endian, checksummed.
//
//   magic "THRS", u32 version, u32 world, u32 rank, text settings, u32 buckets,
//   then per bucket: u32 id, u64 step, u64 elements, u64 size of its fields in bytes, the fields;
//   at the end, u64 XXH3 of everything before.
//
// A text is a u32 length and its bytes. A field is a text name, a u8 kind (see FieldKind), a u64
// count, and its values: floats, a u64 for a number, or the bytes of the fields of a section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/method/method.h"

namespace thinreduce {

struct BucketState {
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::vector<std::byte> fields;  // written by save_fields()
};

struct SessionState {
  int world = 1;
  int rank = 0;
  std::string settings;  // spec and options; those of the resumed session must be equal
  std::map<std::uint32_t, BucketState> buckets;
};

// Converts a state to the bytes of such a file, and back. decode_state throws Error{bad_state} for
// damaged bytes; `what` names them in the message.
[[nodiscard]] std::vector<std::byte> encode_state(SessionState state);
[[nodiscard]] SessionState decode_state(std::span<const std::byte> bytes, std::string_view what);
// Returns the name that messages use for a state from this file.
[[nodiscard]] std::string state_file_name(const std::filesystem::path& file);

// Replaces the file atomically. Throws Error{unavailable} naming the file and the reason.
void write_state(const std::filesystem::path& file, SessionState state);
// Throws Error{unavailable} when the file can't be read, Error{bad_state} when it is damaged.
[[nodiscard]] SessionState read_state(const std::filesystem::path& file);

// The kinds of field of an Archive.
enum class FieldKind : std::uint8_t {
  summed = 0,
  replicated = 1,
  number = 2,
  section = 3,  // fields that one rank keeps, with the name "part"; no values at the other ranks
};

// One stored field of a bucket's state.
struct StateField {
  std::string name;
  FieldKind kind = FieldKind::number;
  std::vector<std::byte> values;

  // Returns the values of a summed or replicated field.
  [[nodiscard]] std::vector<float> floats() const;
};

// The same, with values that lie in a bucket's bytes.
struct FieldView {
  std::string name;
  FieldKind kind = FieldKind::number;
  std::span<const std::byte> values;
};

// Split a bucket's bytes into fields, and join them again. The first two throw Error{bad_state}.
[[nodiscard]] std::vector<FieldView> view_fields(const BucketState& state);
[[nodiscard]] std::vector<StateField> split_fields(const BucketState& state);
[[nodiscard]] std::vector<std::byte> join_fields(const std::vector<StateField>& fields);

// A function that shows all state of a bucket to an archive, as Method::state() does.
using ShowState = std::function<void(Archive&)>;

// The rank whose state is saved or loaded.
struct RankInWorld {
  int rank = 0;
  int world = 1;
};

// Returns the state that `show` shows, as bytes, in the memory of `reused`.
[[nodiscard]] std::vector<std::byte> save_fields(const ShowState& show, const RankInWorld& place,
                                                 std::vector<std::byte> reused = {});
// Replaces the state that `show` shows. Throws Error{bad_state} naming `bucket` when `state` was
// saved for another method, another number of elements or another rank.
void load_fields(const ShowState& show, const BucketState& state, std::uint32_t bucket,
                 const RankInWorld& place);

}  // namespace thinreduce

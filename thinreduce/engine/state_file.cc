#include "thinreduce/engine/state_file.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "thinreduce/engine/whole_file.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

constexpr std::uint32_t kMagic = 0x53524854;  // "THRS"
constexpr std::uint32_t kVersion = 3;

[[noreturn]] void refuse_state(std::string_view what, const std::string& why) {
  throw Error(ErrorCode::bad_state, fmt::format("{}: {}", what, why));
}

class ByteWriter {
 public:
  // Counts bytes, or writes them to memory that is allocated once.
  void count_only() { counts_only_ = true; }
  void reserve(std::size_t bytes) { out.reserve(bytes); }
  [[nodiscard]] bool counts_only() const { return counts_only_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  template <PlainValue T>
  void value(T v) {
    bytes(std::as_bytes(std::span<const T>(&v, 1)));
  }
  void bytes(std::span<const std::byte> more) {
    size_ += more.size();
    if (!counts_only_) out.insert(out.end(), more.begin(), more.end());
  }
  void text(std::string_view text) {
    value(static_cast<std::uint32_t>(text.size()));
    bytes(std::as_bytes(std::span(text)));
  }
  // Appends all that another writer has.
  void append(const ByteWriter& other) {
    size_ += other.size_;
    if (!counts_only_) out.insert(out.end(), other.out.begin(), other.out.end());
  }
  std::vector<std::byte> out;

 private:
  bool counts_only_ = false;
  std::size_t size_ = 0;
};

std::string read_text(ByteReader& reader) {
  const auto bytes = reader.take(reader.value<std::uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The name of the fields that hold a section. Its word is older than the one in the code, and stays
// so that saved states can be loaded.
constexpr std::string_view kSection = "part";

std::size_t width_of(FieldKind kind) {
  switch (kind) {
    case FieldKind::number:
      return sizeof(std::uint64_t);
    case FieldKind::section:
      return 1;
    default:
      return sizeof(float);
  }
}

class FieldWriter final : public Archive {
 public:
  FieldWriter(const RankInWorld& place, std::vector<std::byte> reused)
      : Archive(place.rank, place.world) {
    writer_.out = std::move(reused);
    writer_.out.clear();
  }

  // Counts the bytes of all fields instead of keeping them, or makes room for as many.
  void count_only() { writer_.count_only(); }
  void reserve(std::size_t bytes) { writer_.reserve(bytes); }
  [[nodiscard]] std::size_t size() const { return writer_.size(); }

  void summed(std::string_view name, std::vector<float>& values, Length /*length*/) override {
    field(name, FieldKind::summed, std::span<const float>(values));
  }
  void replicated(std::string_view name, std::vector<float>& values, Length /*length*/) override {
    field(name, FieldKind::replicated, std::span<const float>(values));
  }
  void number(std::string_view name, std::uint64_t& value) override {
    field(name, FieldKind::number, std::span<const std::uint64_t>(&value, 1));
  }
  [[nodiscard]] bool loading() const override { return false; }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(writer_.out); }

 private:
  void begin_section(std::size_t number) override {
    ensure(number == sections_ && enclosing_.size() == 0,
           "sections must be shown in order and not nested", number, sections_, enclosing_.size());
    enclosing_ = std::exchange(writer_, ByteWriter{});
    if (enclosing_.counts_only()) writer_.count_only();
    ++sections_;
  }
  void end_section(std::size_t /*number*/) override {
    const ByteWriter inner = std::exchange(writer_, std::exchange(enclosing_, ByteWriter{}));
    head(kSection, FieldKind::section, inner.size());
    writer_.append(inner);
  }

  void head(std::string_view name, FieldKind kind, std::size_t count) {
    writer_.text(name);
    writer_.value(static_cast<std::uint8_t>(kind));
    writer_.value(static_cast<std::uint64_t>(count));
  }
  template <typename T>
  void field(std::string_view name, FieldKind kind, std::span<const T> values) {
    head(name, kind, values.size());
    writer_.bytes(std::as_bytes(values));
  }

  ByteWriter writer_;
  ByteWriter enclosing_;  // while a section is written
  std::size_t sections_ = 0;
};

// Reads fields in the order in which the method shows them.
class FieldReader final : public Archive {
 public:
  FieldReader(const BucketState& state, const RankInWorld& place)
      : Archive(place.rank, place.world),
        elements_(state.elements),
        reader_(state.fields, "the state"),
        enclosing_(reader_) {}

  void summed(std::string_view name, std::vector<float>& values, Length length) override {
    floats(name, FieldKind::summed, values, length);
  }
  void replicated(std::string_view name, std::vector<float>& values, Length length) override {
    floats(name, FieldKind::replicated, values, length);
  }
  void number(std::string_view name, std::uint64_t& value) override {
    std::vector<std::uint64_t> values;
    read(name, FieldKind::number, values);
    if (values.size() != 1) {
      throw Error(
          ErrorCode::bad_state,
          fmt::format("field '{}' must be one number, it has {} values", name, values.size()));
    }
    value = values[0];
  }
  [[nodiscard]] bool loading() const override { return true; }
  [[nodiscard]] bool section_is_lost() const override { return section_.empty(); }
  void finish() const { reader_.finish(); }

 private:
  void begin_section(std::size_t /*number*/) override {
    read(kSection, FieldKind::section, section_);
    enclosing_ = std::exchange(reader_, ByteReader(section_, "the state"));
  }
  void end_section(std::size_t /*number*/) override {
    reader_.finish();
    reader_ = enclosing_;
  }

  void floats(std::string_view name, FieldKind kind, std::vector<float>& values, Length length) {
    read(name, kind, values);
    if (kind == FieldKind::summed && values.empty() && length == Length::per_element) {
      values.resize(elements_);
    }
    const bool none = length == Length::per_element_or_none && values.empty();
    if (length != Length::any && !none && values.size() != elements_) {
      throw Error(ErrorCode::bad_state, fmt::format("field '{}' has {} values for {} elements",
                                                    name, values.size(), elements_));
    }
    if (const std::size_t bad = kernels::first_nonfinite(values); bad < values.size()) {
      throw Error(
          ErrorCode::bad_state,
          fmt::format("value {} of field '{}' is {} and must be finite", bad, name, values[bad]));
    }
  }

  template <typename T>
  void read(std::string_view name, FieldKind kind, std::vector<T>& values) {
    const std::string found = read_text(reader_);
    const auto found_kind = reader_.value<std::uint8_t>();
    if (found != name || found_kind != static_cast<std::uint8_t>(kind)) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("field '{}' was found in place of '{}'; it was saved for another "
                              "method",
                              found, name));
    }
    const auto count = reader_.value<std::uint64_t>();
    if (count > reader_.left() / sizeof(T)) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("field '{}' is truncated; use another checkpoint", name));
    }
    const auto bytes = reader_.take(count * sizeof(T));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  }

  std::uint64_t elements_;
  ByteReader reader_;
  ByteReader enclosing_;  // while a section is read
  std::vector<std::byte> section_;
};

}  // namespace

std::vector<std::byte> encode_state(SessionState state) {
  ByteWriter writer;
  // The numbers before a bucket's fields take less than 64 bytes, the others as well.
  std::size_t bytes = 64 + state.settings.size();
  for (const auto& [id, bucket] : state.buckets) bytes += 64 + bucket.fields.size();
  writer.reserve(bytes);
  writer.value(kMagic);
  writer.value(kVersion);
  writer.value(static_cast<std::uint32_t>(state.world));
  writer.value(static_cast<std::uint32_t>(state.rank));
  writer.text(state.settings);
  writer.value(static_cast<std::uint32_t>(state.buckets.size()));
  for (auto& [id, bucket] : state.buckets) {
    writer.value(id);
    writer.value(bucket.step);
    writer.value(bucket.elements);
    writer.value(static_cast<std::uint64_t>(bucket.fields.size()));
    writer.bytes(bucket.fields);
    bucket.fields = std::vector<std::byte>();  // so that no more than one bucket is in memory twice
  }
  writer.value(checksum(std::span<const std::byte>(writer.out)));
  return std::move(writer.out);
}

SessionState decode_state(std::span<const std::byte> bytes, std::string_view what) {
  if (bytes.size() < 16 || load_value<std::uint32_t>(bytes, 0) != kMagic) {
    refuse_state(
        what, "it is truncated or not a thinreduce state file; give a file that thinreduce saved");
  }
  if (const auto version = load_value<std::uint32_t>(bytes, 4); version != kVersion) {
    refuse_state(
        what, fmt::format("it has format version {}, this build reads version {}; load it with the "
                          "thinreduce version that saved it",
                          version, kVersion));
  }
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  if (checksum(body) != load_value<std::uint64_t>(bytes, body.size())) {
    refuse_state(what,
                 "it is truncated or damaged: its checksum is wrong; use an older checkpoint");
  }
  try {
    ByteReader reader(body.subspan(8), "the state");
    SessionState state;
    state.world = static_cast<int>(reader.value<std::uint32_t>());
    state.rank = static_cast<int>(reader.value<std::uint32_t>());
    state.settings = read_text(reader);
    const auto buckets = reader.value<std::uint32_t>();
    for (std::uint32_t i = 0; i < buckets; ++i) {
      const auto id = reader.value<std::uint32_t>();
      BucketState& bucket = state.buckets[id];
      bucket.step = reader.value<std::uint64_t>();
      bucket.elements = reader.value<std::uint64_t>();
      if (bucket.step > Archive::kMaxSteps) {
        throw Error(ErrorCode::bad_state, fmt::format("bucket {} is at step {}, beyond {}", id,
                                                      bucket.step, Archive::kMaxSteps));
      }
      const auto fields = reader.take(reader.value<std::uint64_t>());
      bucket.fields.assign(fields.begin(), fields.end());
    }
    reader.finish();
    return state;
  } catch (const Error& error) {
    refuse_state(what, error.what());
  }
}

std::string state_file_name(const std::filesystem::path& file) {
  return fmt::format("state file {}", file.string());
}

void write_state(const std::filesystem::path& file, SessionState state) {
  write_file(file, encode_state(std::move(state)));
}

SessionState read_state(const std::filesystem::path& file) {
  return decode_state(read_file(file), state_file_name(file));
}

std::vector<float> StateField::floats() const {
  std::vector<float> result(values.size() / sizeof(float));
  if (!result.empty()) std::memcpy(result.data(), values.data(), result.size() * sizeof(float));
  return result;
}

std::vector<FieldView> view_fields(const BucketState& state) {
  std::vector<FieldView> fields;
  ByteReader reader(state.fields, "the state");
  try {
    while (reader.left() > 0) {
      FieldView field;
      field.name = read_text(reader);
      field.kind = static_cast<FieldKind>(reader.value<std::uint8_t>());
      const auto count = reader.value<std::uint64_t>();
      const std::size_t width = width_of(field.kind);
      if (field.kind > FieldKind::section || count > reader.left() / width) {
        throw Error(ErrorCode::bad_state,
                    fmt::format("field '{}' is damaged; use another checkpoint", field.name));
      }
      field.values = reader.take(count * width);
      fields.push_back(std::move(field));
    }
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_state, fmt::format("saved state of a bucket: {}", error.what()));
  }
  return fields;
}

std::vector<StateField> split_fields(const BucketState& state) {
  std::vector<StateField> fields;
  for (const FieldView& field : view_fields(state)) {
    fields.push_back({field.name, field.kind, {field.values.begin(), field.values.end()}});
  }
  return fields;
}

std::vector<std::byte> join_fields(const std::vector<StateField>& fields) {
  ByteWriter writer;
  for (const StateField& field : fields) {
    writer.text(field.name);
    writer.value(static_cast<std::uint8_t>(field.kind));
    writer.value(static_cast<std::uint64_t>(field.values.size() / width_of(field.kind)));
    writer.bytes(field.values);
  }
  return std::move(writer.out);
}

std::vector<std::byte> save_fields(const ShowState& show, const RankInWorld& place,
                                   std::vector<std::byte> reused) {
  std::size_t bytes = 0;
  if (reused.capacity() == 0) {
    FieldWriter count(place, {});
    count.count_only();
    show(count);
    bytes = count.size();
  }
  FieldWriter fields(place, std::move(reused));
  fields.reserve(bytes);
  show(fields);
  return fields.take();
}

void load_fields(const ShowState& show, const BucketState& state, std::uint32_t bucket,
                 const RankInWorld& place) {
  try {
    FieldReader fields(state, place);
    show(fields);
    fields.finish();
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_state,
                fmt::format("saved state of bucket {}: {}", bucket, error.what()));
  }
}

}  // namespace thinreduce

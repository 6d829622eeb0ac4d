#include "apps/report/json_file.h"

#include <fmt/format.h>

#include <limits>

#include "apps/files.h"
#include "apps/json_text.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {

using Json = nlohmann::json;

JsonObject::JsonObject(Json value, std::string where)
    : value_(std::move(value)), where_(std::move(where)) {
  if (!value_.is_object()) fail(fmt::format("must be an object, but is {}", value_.type_name()));
}

void JsonObject::fail(const std::string& what) const {
  throw Error(ErrorCode::bad_state, fmt::format("{}: {}", where_, what));
}

const Json* JsonObject::find(const char* key) const {
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

double JsonObject::number(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::numeric_limits<double>::quiet_NaN();
  if (!value->is_number()) {
    fail(fmt::format("\"{}\" must be a number, but is {}", key, value->type_name()));
  }
  return value->get<double>();
}

std::string JsonObject::text(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return "";
  if (!value->is_string()) {
    fail(fmt::format("\"{}\" must be a string, but is {}", key, value->type_name()));
  }
  return value->get<std::string>();
}

JsonObject JsonObject::object(const char* key) const {
  const Json* value = find(key);
  return {value == nullptr ? Json::object() : *value, fmt::format("{} \"{}\"", where_, key)};
}

bool JsonObject::flag(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) fail(fmt::format("\"{}\" must be true or false", key));
  return value->get<bool>();
}

std::vector<JsonObject> JsonObject::objects(const char* key) const {
  std::vector<JsonObject> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) fail(fmt::format("\"{}\" must be a list", key));
  for (const Json& one : *value) {
    if (!one.is_object()) fail(fmt::format("\"{}\" must hold objects alone", key));
    list.emplace_back(one, where_);
  }
  return list;
}

std::map<std::string, double> JsonObject::numbers() const {
  std::map<std::string, double> all;
  for (const auto& item : value_.items()) all[item.key()] = number(item.key().c_str());
  return all;
}

void JsonObject::require(const char* key) const {
  if (find(key) == nullptr)
    fail(fmt::format("\"{}\" is missing; the file is damaged, or not written by thinreduce", key));
}

void JsonObject::require_format(int known) const {
  if (const double format = number("format"); format > known) {
    fail(fmt::format(
        "format {} was written by a newer thinreduce; this version reads up to format {}", format,
        known));
  }
}

Json read_json(const std::filesystem::path& file) {
  try {
    return parse_json(read_text(file));
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::bad_state, fmt::format("{}: invalid JSON: {}; the file is damaged",
                                                  file.string(), plain_text(error)));
  }
}

JsonObject read_object(const std::filesystem::path& file) {
  return {read_json(file), file.string()};
}

// Returns the text of an error without the line, which is that of a part of the file.
std::string without_line(std::string text) {
  constexpr std::string_view kLine = "line 1, ";
  if (const auto at = text.find(kLine); at != std::string::npos) text.erase(at, kLine.size());
  return text;
}

void read_lines(const std::filesystem::path& file,
                const std::function<void(const JsonObject&)>& take) {
  const std::string text = read_text(file);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++number;
    const std::size_t newline = text.find('\n', begin);
    const bool ended = newline != std::string::npos;
    const std::size_t end = ended ? newline : text.size();
    const std::string where = fmt::format("{}:{}", file.string(), number);
    Json value;
    try {
      value = parse_json(std::string_view(text).substr(begin, end - begin));
    } catch (const Json::exception& error) {
      if (!ended) return;
      throw Error(ErrorCode::bad_state, fmt::format("{}: invalid JSON: {}; the file is damaged",
                                                    where, without_line(plain_text(error))));
    }
    take(JsonObject(std::move(value), where));
    begin = end + 1;
  }
}

}  // namespace thinreduce::apps

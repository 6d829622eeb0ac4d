// Reads untrusted JSON files. Every error names the file, the line and the key.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinreduce::apps {

// One JSON object and its position, such as "runs/a/steps.jsonl:17".
class JsonObject {
 public:
  JsonObject(nlohmann::json value, std::string where);

  // Return NaN or "" for a missing key or null; throw Error for a value of another type.
  [[nodiscard]] double number(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] JsonObject object(const char* key) const;
  // Returns false for a missing key or null; throws Error for a value of another type.
  [[nodiscard]] bool flag(const char* key) const;
  // Returns the objects of a list; none for a missing key or null. Throws Error for anything else.
  [[nodiscard]] std::vector<JsonObject> objects(const char* key) const;
  // Returns all keys; each value must be a number or null.
  [[nodiscard]] std::map<std::string, double> numbers() const;
  [[nodiscard]] const nlohmann::json* find(const char* key) const;
  // Throws Error when `key` is missing.
  void require(const char* key) const;
  // Throws Error when the file has a later format than `known`.
  void require_format(int known) const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  nlohmann::json value_;
  std::string where_;
};

[[nodiscard]] nlohmann::json read_json(const std::filesystem::path& file);
[[nodiscard]] JsonObject read_object(const std::filesystem::path& file);

// Calls `take` for every line of a JSONL file, in order. Skips a last line that is invalid and has
// no newline: it was cut when the writer was killed.
void read_lines(const std::filesystem::path& file,
                const std::function<void(const JsonObject&)>& take);

}  // namespace thinreduce::apps

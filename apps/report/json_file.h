// JSON from files that others wrote: every complaint names the file, the line and the key.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace thinreduce::apps {

// One JSON object and where it stands, e.g. "runs/a/steps.jsonl:17".
class JsonObject {
 public:
  JsonObject(nlohmann::json value, std::string where);

  // NaN and "" for what is not there or null; Error for what is there and of another type.
  [[nodiscard]] double number(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] JsonObject object(const char* key) const;
  // All keys, each a number or null.
  [[nodiscard]] std::map<std::string, double> numbers() const;
  [[nodiscard]] const nlohmann::json* find(const char* key) const;
  // Error unless `key` is there.
  void require(const char* key) const;
  // Error when the file is of a later format than this program knows.
  void require_format(int known) const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  nlohmann::json value_;
  std::string where_;
};

[[nodiscard]] nlohmann::json read_json(const std::filesystem::path& file);
[[nodiscard]] JsonObject read_object(const std::filesystem::path& file);

// Every line of a JSONL file, in order. A last line without its end of line that is no JSON was cut
// when the writer was killed: it is left out.
void read_lines(const std::filesystem::path& file,
                const std::function<void(const JsonObject&)>& take);

}  // namespace thinreduce::apps

// The options of a method: their declarations, and the values that a spec gives them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinreduce {

// The declaration of one option: its name, default, range and help.
struct OptionInfo {
  enum class Kind { number, integer, choice, names };

  std::string name;
  Kind kind = Kind::number;
  std::string default_value;
  double min = 0;  // of a number or integer, inclusive
  double max = 0;
  // All values of a choice; all names of which a value joins some with a plus; for a number or
  // integer, words that are allowed as well.
  std::vector<std::string> choices;
  std::string help;
  // Spellings of 0.1, which 0.2 and 0.3 still accept.
  std::string old_name{};
  std::vector<std::pair<std::string, std::string>> old_values{};  // old word, new word
  bool paper_only = false;  // serves only to reproduce a paper's setting; listed apart

  static OptionInfo number(std::string name, double value, double min, double max,
                           std::string help);
  static OptionInfo integer(std::string name, long long value, long long min, long long max,
                            std::string help);
  static OptionInfo choice(std::string name, std::string value, std::vector<std::string> choices,
                           std::string help);
  // One or more of the names, joined by a plus.
  static OptionInfo names(std::string name, std::string value, std::vector<std::string> choices,
                          std::string help);
  static OptionInfo on_off(std::string name, bool value, std::string help);
  // Returns a copy that allows a word in place of the number; with or_else, as the default.
  [[nodiscard]] OptionInfo or_word(const std::string& word) const;
  [[nodiscard]] OptionInfo or_else(const std::string& word) const;
  // Returns a copy that also accepts an old name, or an old word for one of the values.
  [[nodiscard]] OptionInfo formerly(const std::string& old) const;
  [[nodiscard]] OptionInfo formerly_value(const std::string& old_word,
                                          const std::string& word) const;
  // Returns a copy that is listed under the paper's settings.
  [[nodiscard]] OptionInfo for_paper() const;
};

// Splits `a+b+c`.
[[nodiscard]] std::vector<std::string> split_names(std::string_view text);

// The values of all options of a method, checked against their OptionInfo.
class Options {
 public:
  [[nodiscard]] double number(std::string_view name) const;
  [[nodiscard]] long long integer(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> names(std::string_view name) const;
  [[nodiscard]] bool on(std::string_view name) const { return text(name) == "on"; }

  std::map<std::string, std::string, std::less<>> values;
};

}  // namespace thinreduce

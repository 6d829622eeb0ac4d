// The options of a method: what it declares, and the values that a spec gives them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinreduce {

// One option of a method, with all that is needed to check and to document it.
struct OptionInfo {
  enum class Kind { number, integer, choice };

  std::string name;
  Kind kind = Kind::number;
  std::string default_value;
  double min = 0;  // number, integer: inclusive range
  double max = 0;
  std::vector<std::string> choices;  // choice: all values; number, integer: words allowed as well
  std::string help;
  // Spellings of the release before, which are still accepted: another name of the option, and
  // other words for its values (old word, new word).
  std::string old_name{};
  std::vector<std::pair<std::string, std::string>> old_values{};
  bool paper_only =
      false;  // needed only to reproduce a paper's setting; listed apart from the others

  static OptionInfo number(std::string name, double value, double min, double max,
                           std::string help);
  static OptionInfo integer(std::string name, long long value, long long min, long long max,
                            std::string help);
  static OptionInfo choice(std::string name, std::string value, std::vector<std::string> choices,
                           std::string help);
  static OptionInfo on_off(std::string name, bool value, std::string help);
  // The same, and a word is allowed in place of the number; or_else: it is also the default.
  [[nodiscard]] OptionInfo or_word(const std::string& word) const;
  [[nodiscard]] OptionInfo or_else(const std::string& word) const;
  // The same, and an old name, or an old word for one of the values, is accepted too.
  [[nodiscard]] OptionInfo formerly(const std::string& old) const;
  [[nodiscard]] OptionInfo formerly_value(const std::string& old_word,
                                          const std::string& word) const;
  // The same, listed under the paper's settings.
  [[nodiscard]] OptionInfo for_paper() const;
};

// Values of all of a method's options, checked against their OptionInfo.
class Options {
 public:
  [[nodiscard]] double number(std::string_view name) const;
  [[nodiscard]] long long integer(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] bool on(std::string_view name) const { return text(name) == "on"; }

  std::map<std::string, std::string, std::less<>> values;
};

}  // namespace thinreduce

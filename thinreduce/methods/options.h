// The options of a method: what it declares, and the values that a spec gives them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace thinreduce {

// One option of a method, with all that is needed to check and to document it.
struct OptionInfo {
  enum class Kind { number, integer, choice };

  std::string name;
  Kind kind = Kind::number;
  std::string default_value;
  double least = 0;  // number, integer: inclusive range
  double most = 0;
  std::vector<std::string> choices;  // choice: what is allowed; number, integer: words allowed too
  std::string help;

  static OptionInfo number(std::string name, double value, double least, double most,
                           std::string help);
  static OptionInfo integer(std::string name, long long value, long long least, long long most,
                            std::string help);
  static OptionInfo choice(std::string name, std::string value, std::vector<std::string> choices,
                           std::string help);
  static OptionInfo on_off(std::string name, bool value, std::string help);
  // The same, and a word is allowed in place of the number; or_else: it is also the default.
  [[nodiscard]] OptionInfo or_word(const std::string& word) const;
  [[nodiscard]] OptionInfo or_else(const std::string& word) const;
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

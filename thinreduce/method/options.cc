#include "thinreduce/method/options.h"

#include <fmt/format.h>

#include <charconv>

#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

template <typename T>
T parse_checked(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ensure(error == std::errc{} && end == text.data() + text.size(),
         "an option's value must have been checked", std::string_view(text));
  return value;
}

}  // namespace

OptionInfo OptionInfo::number(std::string name, double value, double min, double max,
                              std::string help) {
  return {std::move(name), Kind::number, fmt::format("{}", value), min, max, {}, std::move(help)};
}

OptionInfo OptionInfo::integer(std::string name, long long value, long long min, long long max,
                               std::string help) {
  return {std::move(name),          Kind::integer,
          fmt::format("{}", value), static_cast<double>(min),
          static_cast<double>(max), {},
          std::move(help)};
}

OptionInfo OptionInfo::choice(std::string name, std::string value, std::vector<std::string> choices,
                              std::string help) {
  return {std::move(name),    Kind::choice,   std::move(value), 0, 0,
          std::move(choices), std::move(help)};
}

OptionInfo OptionInfo::names(std::string name, std::string value, std::vector<std::string> choices,
                             std::string help) {
  OptionInfo option =
      choice(std::move(name), std::move(value), std::move(choices), std::move(help));
  option.kind = Kind::names;
  return option;
}

OptionInfo OptionInfo::on_off(std::string name, bool value, std::string help) {
  return choice(std::move(name), value ? "on" : "off", {"on", "off"}, std::move(help));
}

OptionInfo OptionInfo::or_word(const std::string& word) const {
  OptionInfo option = *this;
  option.choices.push_back(word);
  return option;
}

OptionInfo OptionInfo::or_else(const std::string& word) const {
  OptionInfo option = or_word(word);
  option.default_value = word;
  return option;
}

OptionInfo OptionInfo::formerly(const std::string& old) const {
  OptionInfo option = *this;
  option.old_name = old;
  return option;
}

OptionInfo OptionInfo::formerly_value(const std::string& old_word, const std::string& word) const {
  OptionInfo option = *this;
  option.old_values.emplace_back(old_word, word);
  return option;
}

OptionInfo OptionInfo::for_paper() const {
  OptionInfo option = *this;
  option.paper_only = true;
  return option;
}

double Options::number(std::string_view name) const {
  return parse_checked<double>(text(name));
}

long long Options::integer(std::string_view name) const {
  return parse_checked<long long>(text(name));
}

const std::string& Options::text(std::string_view name) const {
  const auto found = values.find(name);
  ensure(found != values.end(), "a method must ask only for options that it declares", name);
  return found->second;
}

std::vector<std::string> Options::names(std::string_view name) const {
  return split_names(text(name));
}

std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  for (;;) {
    const auto plus = text.find('+');
    names.emplace_back(text.substr(0, plus));
    if (plus == std::string_view::npos) return names;
    text.remove_prefix(plus + 1);
  }
}

}  // namespace thinreduce

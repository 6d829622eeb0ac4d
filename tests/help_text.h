// Checks of the help texts of both programs.
#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace thinreduce::testing_support {

// Expects every default to lie in its range; returns the number of ranges with a default.
inline std::size_t check_help(const std::string& help) {
  EXPECT_EQ(help.find("Excludes"), std::string::npos) << help;
  // Descriptions are wrapped, also inside the brackets.
  const std::string text = std::regex_replace(help, std::regex("\\s+"), " ");
  const std::regex range(R"(\[([-\d.e+]+) (?:to ([-\d.e+]+)|or more); default ([-\d.e+]+)\])");
  std::size_t found = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), range), end; it != end; ++it, ++found) {
    const double value = std::stod((*it)[3]);
    EXPECT_GE(value, std::stod((*it)[1])) << (*it)[0];
    if ((*it)[2].matched) {
      EXPECT_LE(value, std::stod((*it)[2])) << (*it)[0];
    }
  }
  return found;
}

}  // namespace thinreduce::testing_support

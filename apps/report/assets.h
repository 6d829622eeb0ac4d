// The files of the page as constants, which embed.cmake writes at build time.
#pragma once

#include <string_view>

namespace thinreduce::apps::assets {

extern const std::string_view kPageHtml;
extern const std::string_view kRateDistortionHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;
extern const std::string_view kUplotJs;
extern const std::string_view kUplotCss;
extern const std::string_view kUplotLicense;

}  // namespace thinreduce::apps::assets

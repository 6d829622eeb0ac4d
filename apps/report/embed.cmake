# Writes OUTPUT, a C++ file with the texts of the report's page and of uPlot as constants.
#   cmake -DOUTPUT=assets.cc -DPAGE=apps/report -DUPLOT=.cache/uplot-1.6.32 -P embed.cmake
set(assets
    kPageHtml ${PAGE}/page.html
    kRateDistortionHtml ${PAGE}/rate_distortion.html
    kPageCss ${PAGE}/page.css
    kPageJs ${PAGE}/page.js
    kUplotJs ${UPLOT}/dist/uPlot.iife.min.js
    kUplotCss ${UPLOT}/dist/uPlot.min.css
    kUplotLicense ${UPLOT}/LICENSE)

set(text "// Written by embed.cmake.\n#include \"apps/report/assets.h\"\n\nnamespace thinreduce::apps::assets {\n\n")
while(assets)
  list(POP_FRONT assets name file)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "The report's page needs ${file}, which does not exist.\n"
                        "Run scripts/fetch_uplot.sh (make setup does), then build again.")
  endif()
  file(READ ${file} content)
  string(APPEND text "const std::string_view ${name} = R\"~~~~(" "${content}" ")~~~~\";\n")
endwhile()
string(APPEND text "\n}  // namespace thinreduce::apps::assets\n")
file(WRITE ${OUTPUT} "${text}")

// `thinreduce report`: reads run folders, writes one HTML page and prints a table.
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/files.h"
#include "apps/report/page.h"
#include "apps/terminal.h"

namespace thinreduce::apps {

int report(const ReportOptions& options) {
  std::vector<RunRecord> runs;
  for (const auto& folder : options.runs) runs.push_back(read_run(folder));
  std::vector<CodecResult> codec;
  if (!options.codec.empty()) codec = read_codec_results(options.codec);
  const std::vector<SummaryRow> rows = summarise(runs);
  const std::string page = make_page(runs, rows, codec);
  if (options.output == "-") {
    write_standard_output(page);
    return 0;
  }
  write_text(options.output, page);
  if (options.json) {
    fmt::print("{}\n", to_json(rows).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}\nHTML page: {}\n", table(to_cells(rows)), options.output);
  }
  return 0;
}

}  // namespace thinreduce::apps

// `thinreduce report`: run folders in, one HTML page and a table out.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "apps/report/page.h"
#include "apps/terminal.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

// The page appears whole or not at all: a full disk must not leave half of one.
void write_page(const std::filesystem::path& file, const std::string& page) {
  const auto fail = [&] {
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: can't be written: {}", file.string(), std::strerror(errno)));
  };
  if (std::filesystem::is_directory(file)) {
    errno = EISDIR;
    fail();
  }
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream stream(part, std::ios::binary);
  if (!stream) fail();
  stream << page;
  stream.close();
  if (!stream || std::rename(part.c_str(), file.c_str()) != 0) {
    const int reason = errno;
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    errno = reason;
    fail();
  }
}

}  // namespace

int report(const ReportOptions& options) {
  std::vector<RunRecord> runs;
  for (const auto& folder : options.runs) runs.push_back(read_run(folder));
  std::vector<CodecResult> codec;
  if (!options.codec.empty()) codec = read_codec_results(options.codec);
  const std::vector<SummaryRow> rows = summarise(runs);
  write_page(options.output, make_page(runs, rows, codec));
  if (options.json) {
    fmt::print("{}\n", to_json(rows).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}\npage: {}\n", table(to_cells(rows)), options.output);
  }
  return 0;
}

}  // namespace thinreduce::apps

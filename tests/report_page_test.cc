// The report's page as a reader sees it: written by the program, opened in a browser without
// network.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/processes.h"
#include "tests/synthetic_runs.h"

namespace thinreduce::report_page_test {
namespace {

namespace fs = std::filesystem;
using testing_support::Finished;
using testing_support::read_file;
using testing_support::run;
using testing_support::SyntheticRun;
using testing_support::write_file;
using testing_support::write_run;

const std::string kProgram = THINREDUCE_PROGRAM;

// Returns a folder in the build folder, which is kept after the test for inspection of the pages.
fs::path work(const std::string& name) {
  fs::path folder = fs::path(THINREDUCE_PAGES) / name;
  fs::create_directories(folder);
  return folder;
}

std::vector<SyntheticRun> six_methods() {
  return {{.method = "fp32"},
          {.method = "bf16", .ratio = 2, .encode = 0.001, .decode = 0.001},
          {.method = "topk:density=0.01",
           .ratio = 62,
           .encode = 0.004,
           .decode = 0.002,
           .learning = 0.8,
           .best = 0.986},
          {.method = "dqsg", .ratio = 7.9, .encode = 0.002, .decode = 0.002, .learning = 0.97},
          {.method = "gradiveq:slice=256,ratio=4",
           .ratio = 7.6,
           .encode = 0.006,
           .decode = 0.006,
           .learning = 0.9,
           .best = 0.988},
          {.method = "sketch",
           .ratio = 12,
           .encode = 0.012,
           .decode = 0.018,
           .learning = 0.6,
           .best = 0.978}};
}

std::vector<std::string> write_runs(const fs::path& folder, const std::vector<SyntheticRun>& runs) {
  std::vector<std::string> folders;
  for (const auto& one : runs) {
    folders.push_back(write_run(folder / ("run-" + std::to_string(folders.size())), one).string());
  }
  return folders;
}

std::string write_codec(const fs::path& folder) {
  auto results = nlohmann::json::array();
  const auto add = [&](const std::string& method, double ratio, double nmse) {
    results.push_back({{"method", method}, {"ratio", ratio}, {"nmse", nmse}, {"floats", 1000}});
  };
  add("fp32", 1, 7.51e-16);  // rounding
  add("bf16", 2, 2.6e-6);
  add("topk:density=0.01,feedback=on", 62, 0.41);
  add("topk:density=0.05,feedback=on", 12.5, 0.17);
  add("topk:density=0.001,feedback=on", 600, 0.8);
  add("dqsg", 7.9, 0.011);
  add("gradiveq:slice=256,ratio=4", 7.6, 0.24);
  add("sketch", 12, 0.66);
  results.back()["measured_in_warmup"] = 3;
  write_file(folder / "codec.json", results.dump());
  return (folder / "codec.json").string();
}

Finished make_report(const std::vector<std::string>& runs, const std::vector<std::string>& more) {
  std::vector<std::string> command{kProgram, "report"};
  command.insert(command.end(), runs.begin(), runs.end());
  command.insert(command.end(), more.begin(), more.end());
  return run(command);
}

// Returns the page after its scripts have run.
Finished browse(const fs::path& page, const std::vector<std::string>& flags = {}) {
  if (std::string(THINREDUCE_CHROMIUM).empty()) {
    throw std::runtime_error(
        "Chromium is missing: run scripts/setup.sh test, then configure again");
  }
  const fs::path profile = page.parent_path() / "profile";
  fs::remove_all(profile);
  std::vector<std::string> command{THINREDUCE_CHROMIUM,
                                   "--headless",
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--disable-quic",
                                   "--no-first-run",
                                   "--disable-background-networking",
                                   "--disable-component-update",
                                   "--disable-sync",
                                   "--user-data-dir=" + profile.string(),
                                   "--enable-logging=stderr",
                                   "--virtual-time-budget=5000",
                                   "--window-size=1280,1000",
                                   "--dump-dom"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back("file://" + page.string() + "#check");
  Finished finished = run(command);
  fs::remove_all(profile);
  return finished;
}

// Returns the pixel counts of the page's own script, one per colour of the chart.
std::vector<int> drawn(const std::string& dom, const std::string& chart) {
  std::smatch tag;
  std::vector<int> counts;
  if (!std::regex_search(dom, tag, std::regex("<figure[^>]*id=\"chart-" + chart + "\"[^>]*>")))
    return counts;
  std::smatch value;
  const std::string text = tag[0];
  if (!std::regex_search(text, value, std::regex("data-drawn=\"([0-9 ]*)\""))) return counts;
  std::istringstream words(value[1]);
  for (int count = 0; words >> count;) counts.push_back(count);
  return counts;
}

void expect_clean(const Finished& browser) {
  ASSERT_EQ(browser.code, 0) << browser.err;
  EXPECT_EQ(browser.err.find("CONSOLE"), std::string::npos) << browser.err;
  EXPECT_NE(browser.out.find("data-ready=\"ok\""), std::string::npos) << browser.err;
}

void expect_drawn(const std::string& dom, const std::string& chart, std::size_t colours) {
  const std::vector<int> counts = drawn(dom, chart);
  EXPECT_EQ(counts.size(), colours) << chart;
  for (const int count : counts) EXPECT_GT(count, 15) << chart;
}

TEST(Page, DrawsEveryChartOfSixMethods) {
  const fs::path folder = work("six");
  const auto finished = make_report(write_runs(folder, six_methods()),
                                    {"--codec", write_codec(folder), "-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("topk"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("report.html"), std::string::npos) << finished.out;

  const Finished browser = browse(folder / "report.html");
  expect_clean(browser);
  for (const char* chart : {"time", "bytes", "step", "loss"}) expect_drawn(browser.out, chart, 6);
  expect_drawn(browser.out, "stages", 6);  // compute, exposed, encode, wire, decode, wait
  expect_drawn(browser.out, "codec", 5);   // fp32 is lossless and not drawn
  EXPECT_NE(browser.out.find("error is 0 or float rounding: fp32 (32 bits"), std::string::npos);
  EXPECT_NE(browser.out.find("were uncompressed: sketch (2.67 bits"), std::string::npos);
  EXPECT_NE(browser.out.find(">2.6e-6<"), std::string::npos);
}

TEST(Page, DrawsTheLossOfLanguageModels) {
  const fs::path folder = work("loss");
  const nlohmann::json text{{"metric", "loss"}, {"data", "text"}, {"model", "gpt"}};
  const auto finished = make_report(
      write_runs(folder, {{.method = "fp32", .config = text}, {.method = "dqsg", .config = text}}),
      {"-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("accuracy"), std::string::npos) << finished.out;
  const Finished browser = browse(folder / "report.html");
  expect_clean(browser);
  for (const char* chart : {"time", "bytes", "step", "loss"}) expect_drawn(browser.out, chart, 2);
}

TEST(Page, MarksOfThirteenMethodsDiffer) {
  const fs::path folder = work("marks");
  auto results = nlohmann::json::array();
  const std::vector<std::string> methods{
      "fp32", "bf16",   "topk",     "qsgd",     "terngrad", "dqsg",         "ndqsg",
      "fft",  "sketch", "gradiveq", "powersgd", "variance", "gradiveq+dqsg"};
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const auto place = static_cast<double>(i + 1);
    results.push_back({{"method", methods[i]}, {"ratio", 2 * place}, {"nmse", 0.01 * place}});
  }
  write_file(folder / "codec.json", results.dump());
  const auto finished =
      make_report(write_runs(folder, {{.method = "dqsg"}}),
                  {"--codec", (folder / "codec.json").string(), "-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Finished browser = browse(folder / "report.html");
  expect_clean(browser);
  const std::string chart = browser.out.substr(browser.out.find("id=\"chart-codec\""));
  const std::regex marker("class=\"u-marker\" style=\"([^\"]*clip-path[^\"]*)\"");
  std::set<std::string> looks;
  std::size_t markers = 0;
  for (std::sregex_iterator it(chart.begin(), chart.end(), marker), end; it != end; ++it) {
    looks.insert((*it)[1]);
    ++markers;
  }
  EXPECT_EQ(markers, methods.size());
  EXPECT_EQ(looks.size(), methods.size());
}

TEST(Report, GoesToStandardOutput) {
  const fs::path folder = work("stdout");
  const auto runs = write_runs(folder, {{.method = "fp32"}});
  const auto finished = make_report(runs, {"-o", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_NE(finished.out.find("</html>"), std::string::npos);
  EXPECT_FALSE(fs::exists("-"));
  const auto both = make_report(runs, {"-o", "-", "--json"});
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("leave out --json"), std::string::npos) << both.err;
}

// Moves the mouse over the page and records the values that the page then shows.
constexpr char kMouse[] = R"(<script>
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement;
  const inside = (chart, what) => [...document.querySelectorAll(`#chart-${chart} ${what}`)];
  const values = (chart) => inside(chart, ".u-value").map((value) => value.textContent).join("|");
  const send = (chart, type, x, y) => {
    const target = inside(chart, ".u-over")[0];
    const box = target.getBoundingClientRect();
    (type === "mouseup" ? document : target).dispatchEvent(new MouseEvent(type, {
      bubbles: true, button: 0, movementX: 1, movementY: 1,
      clientX: box.left + x * box.width, clientY: box.top + y * box.height,
    }));
  };
  const image = (chart) => inside(chart, "canvas")[0].toDataURL();
  const before = values("time");
  const charts = ["time", "bytes", "stages"].map(image);
  send("time", "mousemove", 0.1, 0.5);
  for (const chart of ["bytes", "stages"]) {
    send(chart, "mousemove", 0.1, 0.5);
    send(chart, "mousedown", 0.1, 0.5);
    send(chart, "mousemove", 0.5, 0.5);
    send(chart, "mouseup", 0.5, 0.5);
  }
  setTimeout(() => {
    root.dataset.pointed = String(values("time") !== before && values("time").includes("%"));
    root.dataset.zoomed = String(image("bytes") !== charts[1] && image("stages") !== charts[2]);
    send("bytes", "dblclick", 0.5, 0.5);
    send("stages", "dblclick", 0.5, 0.5);
    for (const chart of ["time", "bytes", "stages"]) send(chart, "mouseleave", 0.5, 0.5);
    setTimeout(() => {
      root.dataset.restored = String(image("bytes") === charts[1] && image("stages") === charts[2]);
      inside("time", ".u-series th")[2].click();
      setTimeout(() => {
        root.dataset.hidden = String(["time", "bytes", "step", "loss", "stages"].map(
          (chart) => inside(chart, ".u-off").filter((row) => row.classList.contains("u-series")).length));
      }, 50);
    }, 50);
  }, 50);
}, 50));
</script></body>)";

TEST(Page, ShowsValuesZoomsAndHides) {
  const fs::path folder = work("mouse");
  const auto finished =
      make_report(write_runs(folder, six_methods()), {"-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  std::string page = read_file(folder / "report.html");
  page.replace(page.rfind("</body>"), 7, kMouse);
  write_file(folder / "mouse.html", page);
  const Finished browser = browse(folder / "mouse.html");
  expect_clean(browser);
  const std::string root = browser.out.substr(0, browser.out.find("<head>"));
  EXPECT_NE(root.find("data-pointed=\"true\""), std::string::npos) << root;
  EXPECT_NE(root.find("data-zoomed=\"true\""), std::string::npos) << root;
  EXPECT_NE(root.find("data-restored=\"true\""), std::string::npos) << root;
  // bf16 disappears from every chart that has it.
  EXPECT_NE(root.find("data-hidden=\"1,1,1,1,0\""), std::string::npos) << root;
}

TEST(Page, DrawsFourteenMethodsInTheDark) {
  const fs::path folder = work("fourteen");
  std::vector<SyntheticRun> runs = six_methods();
  for (const char* method :
       {"ndqsg", "qsgd:levels=4", "terngrad", "fft:keep=0.1", "powersgd:basis=4", "variance",
        "topk:density=0.001", "powersgd:basis=1"}) {
    const auto place = static_cast<double>(runs.size());
    runs.push_back({.method = method,
                    .ratio = 3 * place,
                    .encode = 0.001 * place,
                    .decode = 0.002,
                    .learning = 1 / (1 + place / 20),
                    .best = 0.99 - place / 2000});
  }
  runs[3].status = "interrupted";
  runs[3].stop = 300;
  runs[5].status = "";
  runs[5].stop = 150;
  const auto finished = make_report(write_runs(folder, runs), {"-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("interrupted, 300 of 468 steps"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("incomplete, 150 of 468 steps"), std::string::npos) << finished.out;

  const Finished browser =
      browse(folder / "report.html", {"--blink-settings=preferredColorScheme=0"});
  expect_clean(browser);
  // Thirteen methods use seven colours with different dashes; fp32 has the text colour.
  for (const char* chart : {"time", "bytes", "step", "loss"}) expect_drawn(browser.out, chart, 8);
  expect_drawn(browser.out, "stages", 6);
  EXPECT_EQ(browser.out.find("chart-codec\""), std::string::npos);
}

TEST(Page, ShowsHostileNamesAsText) {
  const fs::path folder = work("hostile");
  const std::string hostile =
      "</script><img src=x onerror=\"document.title='broken'\">'&{{DATA}}\\u003c";
  const auto finished = make_report(
      write_runs(
          folder,
          {{.method = "fp32"},
           {.method = hostile, .ratio = 5, .config = {{"model", hostile}, {"link", hostile}}}}),
      {"-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Finished browser = browse(folder / "report.html");
  expect_clean(browser);
  expect_drawn(browser.out, "time", 2);
  EXPECT_EQ(browser.out.find("<img"), std::string::npos);
  EXPECT_EQ(browser.out.find("<title>broken"), std::string::npos);
}

TEST(Page, SaysSoWhenThereIsNothingToDraw) {
  const fs::path folder = work("empty");
  const auto finished =
      make_report(write_runs(folder, {{.method = "fp32", .stop = 0, .status = ""}}),
                  {"-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Finished browser = browse(folder / "report.html");
  expect_clean(browser);
  EXPECT_TRUE(drawn(browser.out, "time").empty());
  EXPECT_NE(browser.out.find("No evaluations yet."), std::string::npos);
}

TEST(Report, GivesTheSummaryAsJson) {
  const fs::path folder = work("json");
  const auto finished =
      make_report(write_runs(folder, six_methods()), {"--json", "-o", folder / "report.html"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto rows = nlohmann::json::parse(finished.out);
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0]["method"], "fp32");
  EXPECT_TRUE(rows[0]["speedup"].is_null());
  EXPECT_GT(rows[2]["speedup"].get<double>(), 5);
  EXPECT_NEAR(rows[2]["ratio"].get<double>(), 62, 1e-9);
  EXPECT_EQ(rows[2]["identical"], true);
}

TEST(Report, RefusesWhatItCannotRead) {
  const fs::path folder = work("refused");
  fs::create_directories(folder / "other");
  const std::string good = write_run(folder / "good", {.steps = 20});
  const std::string page = folder / "report.html";
  const auto expect_refused = [](const Finished& finished, int code, const std::string& message) {
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_NE(finished.err.find(message), std::string::npos) << finished.err;
    EXPECT_EQ(finished.out, "");
  };
  fs::remove(page);
  expect_refused(make_report({}, {"-o", page}), 2, "needs RUN: Run folders that");
  expect_refused(make_report({good, folder / "none"}, {"-o", page}), 1,
                 "none' is not a folder; give folders");
  expect_refused(make_report({folder / "other"}, {"-o", page}), 1, "is not a run folder");
  expect_refused(make_report({good}, {"-o", page, "--codec", folder / "none.json"}), 1,
                 "none.json");
  EXPECT_FALSE(fs::exists(page));
  expect_refused(make_report({good}, {"-o", folder / "none" / "report.html"}), 1, "can't create");
  expect_refused(make_report({good}, {"-o", folder / "other"}), 1, "can't write");
  expect_refused(make_report({good}, {"-o", "/dev/full/report.html"}), 1, "can't create");

  const fs::path damaged = write_run(folder / "damaged", {.steps = 20});
  std::string lines = read_file(damaged / "steps.jsonl");
  lines[lines.find('\n', lines.find('\n') + 1) + 1] = '#';
  write_file(damaged / "steps.jsonl", lines);
  expect_refused(make_report({damaged}, {"-o", page}), 1, "steps.jsonl:3: invalid JSON");
}

}  // namespace
}  // namespace thinreduce::report_page_test

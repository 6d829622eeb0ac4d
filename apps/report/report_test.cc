// The report page, its tables and the texts in them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "apps/report/assets.h"
#include "apps/report/json_file.h"
#include "apps/report/overview.h"
#include "apps/report/page.h"
#include "apps/report/statistics.h"
#include "tests/complaint.h"
#include "tests/synthetic_runs.h"
#include "tests/temporary_folder.h"

namespace thinreduce::apps::report_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing_support::read_file;
using testing_support::SyntheticRun;
using testing_support::write_file;
using testing_support::write_run;

constexpr char kHostile[] = "</script><img src=x onerror='alert(1)'>\"&{{DATA}}";

TEST(Escape, LeavesNothingThatHtmlCouldRead) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&amp;"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;");
  EXPECT_EQ(escape_html("µs ünï"), "µs ünï");
}

TEST(ScriptJson, CannotEndItsElementAndReadsTheSame) {
  const nlohmann::ordered_json json{{kHostile, kHostile}, {"comment", "<!--"}, {"x", kMissing}};
  const std::string text = script_json(json);
  EXPECT_THAT(text, Not(HasSubstr("<")));
  const auto again = nlohmann::ordered_json::parse(text);
  EXPECT_EQ(again[kHostile], kHostile);
  EXPECT_EQ(again["comment"], "<!--");
  EXPECT_TRUE(again["x"].is_null());
  EXPECT_EQ(nlohmann::json::parse(script_json({{"x", "\xff"}}))["x"], "\uFFFD");
}

TEST(Fill, ReplacesOnceAndComplainsAboutNames) {
  EXPECT_EQ(fill("a {{X}} b {{Y}}{{X}}", {{"X", "{{Y}}"}, {"Y", "2"}}), "a {{Y}} b 2{{Y}}");
  EXPECT_EQ(fill("", {}), "");
  EXPECT_THROW((void)fill("{{Z}}", {}), BrokenInvariant);
  EXPECT_THROW((void)fill("{{Z", {}), BrokenInvariant);
}

TEST(ShortSpec, LeavesOutDefaults) {
  EXPECT_EQ(short_spec("fp32"), "fp32");
  EXPECT_EQ(short_spec("topk:density=0.1,feedback=on"), "topk");
  EXPECT_EQ(short_spec("topk:density=0.05,feedback=on"), "topk:density=0.05");
  EXPECT_EQ(short_spec("unheard:of=1"), "unheard:of=1");
}

TEST(Summarise, ComparesWithTheReferenceOfTheSameSettings) {
  const Folder folder;
  const nlohmann::json slow{{"link", "10mbit"}};
  std::vector<RunRecord> runs;
  const auto add = [&](const SyntheticRun& run) {
    runs.push_back(read_run(write_run(folder / std::to_string(runs.size()), run)));
  };
  add({.method = "fp32", .config = slow});
  add({.method = "fp32"});
  add({.method = "bf16", .ratio = 2});
  add({.method = "bf16", .ratio = 2, .config = slow});
  add({.method = "bf16", .ratio = 2, .config = {{"link", "1gbit"}}});
  runs[0].step_seconds = 10;
  runs[0].accuracy = 0.5;
  const auto rows = summarise(runs);
  EXPECT_NEAR(rows[2].speedup, runs[1].step_seconds / runs[2].step_seconds, 1e-12);
  EXPECT_NEAR(rows[2].difference, runs[2].accuracy - runs[1].accuracy, 1e-12);
  EXPECT_NEAR(rows[3].speedup, 10 / runs[3].step_seconds, 1e-12);
  EXPECT_NEAR(rows[3].difference, runs[3].accuracy - 0.5, 1e-12);
  EXPECT_TRUE(std::isnan(rows[4].speedup));
  EXPECT_NEAR(rows[2].fewer_bytes, 2, 0.01);
  EXPECT_TRUE(std::isnan(rows[4].fewer_bytes));
  EXPECT_TRUE(rows[0].reference);
  EXPECT_TRUE(std::isnan(rows[0].difference));
  // Equal names are distinguished by the settings that differ.
  EXPECT_EQ(rows[2].label, "bf16 300mbit,1ms");
  EXPECT_EQ(rows[3].label, "bf16 10mbit");
  EXPECT_THAT(overview(runs), HasSubstr("differ in more than the method: link"));
}

TEST(Summarise, ALanguageModelIsComparedByItsLoss) {
  const Folder folder;
  const nlohmann::json text{{"metric", "loss"}, {"data", "text"}, {"model", "gpt"}};
  const RunRecord fp32 = read_run(write_run(folder / "a", {.method = "fp32", .config = text}));
  const RunRecord bf16 =
      read_run(write_run(folder / "b", {.method = "bf16", .learning = 0.9, .config = text}));
  ASSERT_GT(bf16.loss, fp32.loss);
  const auto rows = summarise({fp32, bf16});
  EXPECT_TRUE(std::isnan(rows[1].accuracy));
  EXPECT_NEAR(rows[1].difference, bf16.loss - fp32.loss, 1e-12);
  const auto cells = to_cells(rows);
  EXPECT_THAT(cells[0], Not(testing::Contains("accuracy %")));
  EXPECT_EQ(cells[0][1], "loss");
  EXPECT_EQ(cells[1][1], fmt::format("{:.3f}", fp32.loss));
  EXPECT_EQ(cells[2][2], fmt::format("+{:.3f}", bf16.loss - fp32.loss));
  EXPECT_EQ(to_json(rows)[0]["metric"], "loss");
  const std::string page = make_page({fp32, bf16}, rows, {});
  EXPECT_THAT(page, Not(HasSubstr("accuracy</b>")));
  EXPECT_THAT(page, HasSubstr("<h2>Test loss against time</h2>"));
  EXPECT_THAT(page, HasSubstr("nats per character"));
  EXPECT_THAT(page, HasSubstr("32 windows of text per step"));
  const auto chart = chart_data({fp32, bf16}, rows, {});
  EXPECT_EQ(chart["metric"], "loss");
  EXPECT_EQ(chart["runs"][0]["step"]["y"].back(), fp32.evaluations.back().loss);

  // Beside images, both columns are there, and each run has a value in one.
  const RunRecord images = read_run(write_run(folder / "c", {.method = "fp32"}));
  const auto both = summarise({fp32, images});
  const auto table = to_cells(both);
  EXPECT_EQ(table[0][1], "accuracy %");
  EXPECT_EQ(table[0][2], "loss");
  EXPECT_EQ(table[1][1], "–");
  EXPECT_NE(table[2][1], "–");
  const auto charts = chart_data({fp32, images}, both, {});
  EXPECT_EQ(charts["metric"], "accuracy");
  EXPECT_TRUE(charts["runs"][0]["step"]["y"].empty());
  EXPECT_FALSE(charts["runs"][1]["step"]["y"].empty());
}

TEST(Summarise, GivesEveryRunANameOfItsOwn) {
  const Folder folder;
  const RunRecord run = read_run(write_run(folder / "same", {.steps = 5}));
  const auto rows = summarise({run, run, run});
  std::set<std::string> names;
  for (const auto& row : rows) names.insert(row.label);
  EXPECT_EQ(names.size(), 3U) << rows[0].label;
  EXPECT_THAT(overview({run, run}), Not(HasSubstr("differ in more")));
}

TEST(Summarise, DoesNotCompareTheAccuracyOfHalfATraining) {
  const Folder folder;
  const RunRecord reference = read_run(write_run(folder / "a", {.method = "fp32"}));
  const RunRecord half =
      read_run(write_run(folder / "b", {.method = "bf16", .stop = 200, .status = "interrupted"}));
  const auto rows = summarise({reference, half});
  EXPECT_TRUE(std::isnan(rows[1].difference));
  EXPECT_GT(rows[1].speedup, 0);
  EXPECT_EQ(to_cells(rows)[2].back(), "interrupted, 200 of 468 steps");
  EXPECT_THAT(overview({reference, half}), HasSubstr("1 of 2 runs did not finish"));
}

// Older versions wrote 0 when a finished run was resumed.
TEST(CodecResults, ReadOneOrMany) {
  const Folder folder;
  const fs::path file = folder / "codec.json";
  const auto reading = [&](const std::string& text) {
    write_file(file, text);
    return complaint([&] { return read_codec_results(file); });
  };
  EXPECT_EQ(reading(R"({"method": "bf16", "ratio": 2, "nmse": 1e-6, "encode_gbps": null})"),
            "(nothing)");
  const auto one = read_codec_results(file);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].bits, 16);
  EXPECT_EQ(one[0].nmse, 1e-6);
  EXPECT_EQ(
      reading(
          R"([{"method": "a", "ratio": 2, "nmse": 0}, {"method": "b", "ratio": 4, "nmse": 1}])"),
      "(nothing)");
  EXPECT_EQ(read_codec_results(file)[1].bits, 8);
  EXPECT_THAT(reading("[]"), HasSubstr("codec.json has no results"));
  EXPECT_THAT(reading("3"), HasSubstr("has no results"));
  EXPECT_THAT(reading("[3]"), HasSubstr("result 1: must be an object"));
  EXPECT_THAT(reading(R"([{"method": "a", "nmse": 0}])"),
              HasSubstr("result 1: \"ratio\" is missing"));
  EXPECT_THAT(reading(R"([{"method": "a", "ratio": 0, "nmse": 0}])"),
              HasSubstr("must be above 0, but is 0"));
  fs::remove(file);
  EXPECT_THAT(complaint([&] { return read_codec_results(file); }), HasSubstr("can't read"));
  EXPECT_THAT(complaint([&] { return read_codec_results(file.parent_path()); }),
              HasSubstr("can't read"));
}

TEST(Title, SpellsTheLinkForPeople) {
  RunRecord run;
  run.config.model = "lenet";
  for (const auto& [link, shown] :
       std::map<std::string, std::string>{{"50mbit", " at 50 Mbit/s"},
                                          {"1.5gbit,20ms", " at 1.5 Gbit/s, 20 ms"},
                                          {"unlimited", ""},
                                          {"", ""},
                                          {"mbit", " at mbit"},
                                          {"50mbit,", " at 50mbit,"},
                                          {"odd", " at odd"}}) {
    run.config.link = link;
    EXPECT_EQ(title({run}), "thinreduce: lenet" + shown);
  }
}

TEST(Page, HasAllItNeedsInside) {
  const Folder folder;
  const std::vector<RunRecord> runs{read_run(write_run(folder / "a", {.steps = 5000}))};
  const auto rows = summarise(runs);
  const std::string page = make_page(runs, rows, {});
  EXPECT_THAT(page, HasSubstr("The MIT License"));
  EXPECT_THAT(page, HasSubstr("var uPlot="));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("<link")));
  EXPECT_THAT(page, Not(HasSubstr("{{TITLE}}")));
  EXPECT_THAT(page, Not(HasSubstr("id=\"chart-codec\"")));
  EXPECT_THAT(make_page(runs, rows, {{"bf16", 16, 1e-6}}), HasSubstr("id=\"chart-codec\""));
  // The library must not end the element that holds it.
  EXPECT_EQ(assets::kUplotJs.find("</script"), std::string_view::npos);
  EXPECT_EQ(assets::kPageJs.find("</script"), std::string_view::npos);
  const auto data = chart_data(runs, rows, {});
  EXPECT_LE(data["runs"][0]["loss"]["x"].size(), kPointsPerCurve);
  EXPECT_GT(data["runs"][0]["loss"]["x"].size(), kPointsPerCurve / 2);
  EXPECT_LT(page.size(), 200'000U);
}

TEST(Page, ShowsTheStatisticsOfMethods) {
  const Folder folder;
  std::vector<RunRecord> runs{read_run(write_run(folder / "fp32", {}))};
  EXPECT_THAT(make_page(runs, summarise(runs), {}), Not(HasSubstr("id=\"statistics\"")));
  runs.push_back(read_run(write_run(
      folder / "variance",
      {.method = "variance", .steps = 40, .statistics = {{"sent", 0.25}, {kHostile, nullptr}}})));
  for (std::size_t i = 36; i < 40; ++i) runs[1].steps[i].statistics["sent"] = 0.5;
  const auto reported = statistics_of(runs[1]);
  ASSERT_EQ(reported.size(), 1U);  // null does not count
  EXPECT_EQ(reported[0].name, "sent");
  EXPECT_DOUBLE_EQ(reported[0].mean, 0.275);
  EXPECT_DOUBLE_EQ(reported[0].late, 0.5);
  runs[1].steps[0].statistics[kHostile] = 1;
  const std::string page = make_page(runs, summarise(runs), {});
  EXPECT_THAT(page, HasSubstr("<td>sent</td><td>0.275</td><td>0.5</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
}

// Adds a plan to the summary of a run.
fs::path with_plan(const fs::path& folder, const nlohmann::json& plan) {
  auto summary = nlohmann::json::parse(read_file(folder / "summary.json"));
  summary["plan"] = plan;
  write_file(folder / "summary.json", summary.dump());
  return folder;
}

TEST(Page, ShowsThePlanOfAuto) {
  const Folder folder;
  std::vector<RunRecord> runs{read_run(write_run(folder / "fp32", {}))};
  EXPECT_THAT(make_page(runs, summarise(runs), {}), Not(HasSubstr("id=\"plan\"")));
  const auto candidate = [](const char* spec, double seconds, bool allowed) {
    return nlohmann::json{{"spec", spec},        {"tried", true},
                          {"allowed", allowed},  {"error", 0.02},
                          {"seconds", seconds},  {"exposed_seconds", 0.25},
                          {"encode_seconds", 0}, {"bytes_sent", 1'000'000}};
  };
  const nlohmann::json bucket{{"id", 4},
                              {"elements", 1234},
                              {"spec", "dqsg:levels=15"},
                              {"reason", kHostile},
                              {"candidates",
                               {candidate("fp32", 0.5, true),
                                candidate("dqsg:levels=15", 0.125, true),
                                candidate(kHostile, 0.125, false),
                                {{"spec", "topk"}, {"tried", false}}}}};
  const nlohmann::json plan{
      {"bytes_per_second", 12.5e6}, {"predicted_seconds", 0.125},
      {"planning_seconds", 0.03},   {"trials", 1},
      {"reason", "it is faster"},   {"buckets", {bucket, {{"id", 5}, {"spec", "fp32"}}}}};
  runs.push_back(
      read_run(with_plan(write_run(folder / "auto", {.method = "auto", .steps = 40}), plan)));
  const std::string page = make_page(runs, summarise(runs), {});
  for (const char* text :
       {"id=\"plan\"", "it is faster", "Planning took 30.0 ms", "with 1 round of trials",
        "Bucket 4: <code>dqsg:levels=15</code>", "4.00x", "1.00 MB", "chosen", "too coarse",
        "Bucket 5: <code>fp32</code>"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr(">topk<")));
}

TEST(ReadRun, RefusesAPlanThatIsNone) {
  const Folder folder;
  for (const auto& [plan, said] :
       {std::pair<nlohmann::json, const char*>{"fast", "\"plan\""},
        {{{"buckets", 3}}, "\"buckets\" must be a list"},
        {{{"buckets", {3}}}, "\"buckets\" must hold objects alone"},
        {{{"trials", "two"}}, "\"trials\""},
        {{{"buckets", {{{"candidates", {{{"tried", 1}}}}}}}}, "\"tried\" must be true or"}}) {
    write_run(folder / "a", {.method = "auto", .steps = 10});
    EXPECT_THAT(complaint([&, &plan = plan] { return read_run(with_plan(folder / "a", plan)); }),
                HasSubstr(said));
  }
}

TEST(Page, ShowsHostileTextAsText) {
  const Folder folder;
  nlohmann::json config;
  for (const char* key : {"data", "model", "transport", "link", "optimizer", "schedule", "simd"}) {
    config[key] = kHostile;
  }
  const std::vector<RunRecord> runs{read_run(
      write_run(folder / "a", {.method = kHostile, .status = kHostile, .config = config}))};
  const std::string page = make_page(runs, summarise(runs), {{kHostile, 3, 0.1}});
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("&lt;img src=x"));
}

}  // namespace
}  // namespace thinreduce::apps::report_test

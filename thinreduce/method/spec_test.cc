#include <gtest/gtest.h>

#include <set>

#include "tests/ranks.h"
#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::spec_test {
namespace {

TEST(Spec, DefaultsAreSpelledOut) {
  EXPECT_EQ(Spec::parse("fp32").full_text(), "fp32");
  EXPECT_EQ(Spec::parse("topk").full_text(),
            "topk:chunk=auto,collective=auto,decay=1,density=0.1,feedback=on,values=f32");
}

TEST(Spec, EqualSpecsHaveEqualText) {
  const auto text = Spec::parse("topk:feedback=off,density=0.050").full_text();
  EXPECT_EQ(text, Spec::parse("topk:density=5e-2,feedback=off").full_text());
  EXPECT_EQ(Spec::parse(text).full_text(), text);
}

TEST(Spec, FullTextOfEveryMethodParsesToItself) {
  for (const MethodInfo& info : methods()) {
    const auto text = Spec::parse(info.name).full_text();
    EXPECT_EQ(Spec::parse(text).full_text(), text);
  }
}

TEST(Spec, APresetStandsForItsOptions) {
  const auto text = Spec::parse("topk:preset=paper").full_text();
  EXPECT_EQ(text, "topk:chunk=auto,collective=gather,decay=1,density=0.01,feedback=on,values=f32");
  // Wherever it stands, options beside it change it.
  for (const char* spec : {"topk:preset=paper,density=0.02", "topk:density=0.02,preset=paper"}) {
    EXPECT_EQ(Spec::parse(spec).full_text(),
              "topk:chunk=auto,collective=gather,decay=1,density=0.02,feedback=on,values=f32");
  }
  EXPECT_EQ(Spec::parse("gradiveq+qsgd:preset=paper").full_text(),
            Spec::parse("gradiveq+qsgd:bits=4,block=512,collective=gather").full_text());
}

TEST(Spec, EveryPublishedMethodHasItsPapersSetting) {
  for (const MethodInfo& info : methods()) {
    if (info.name == "fp32" || info.name == "bf16") continue;
    const Spec paper = Spec::parse(info.name + ":preset=paper");
    EXPECT_EQ(Spec::parse(paper.full_text()).full_text(), paper.full_text());
    EXPECT_EQ(Spec::parse(paper.short_text()).full_text(), paper.full_text());
    EXPECT_NE(paper.full_text(), Spec::parse(info.name).full_text());
    EXPECT_EQ(paper.full_text().find("preset"), std::string::npos);
  }
}

TEST(Spec, RefusesPresetsThatDoNotExist) {
  const auto refused = [](const std::string& text) {
    return thrown_text(ErrorCode::bad_spec, [&] { (void)Spec::parse(text); });
  };
  EXPECT_NE(refused("topk:preset=none").find("its presets are: paper"), std::string::npos);
  EXPECT_NE(refused("fp32:preset=paper").find("no presets"), std::string::npos);
  EXPECT_NE(refused("topk:preset=paper,preset=paper").find("preset twice"), std::string::npos);
  EXPECT_NE(refused("topk:dens=1").find("decay, preset"), std::string::npos);
}

TEST(Spec, RefusesWithWhatExists) {
  const auto refused = [](const std::string& text) {
    return thrown_text(ErrorCode::bad_spec, [&] { (void)Spec::parse(text); });
  };
  EXPECT_NE(refused("").find("fp32, bf16, "), std::string::npos);
  EXPECT_NE(refused("TOPK").find("no method 'TOPK'"), std::string::npos);
  EXPECT_NE(refused("topk:").find("option=value"), std::string::npos);
  EXPECT_NE(refused("topk:density=0.1,").find("option=value"), std::string::npos);
  EXPECT_NE(refused("topk:dens=0.1").find("density, feedback"), std::string::npos);
  EXPECT_NE(refused("topk:density=0").find("from 1e-06 to 1"), std::string::npos);
  for (const char* value : {"", "nan", "inf", "0x1", "0.1x", "1e999", "-0.1", " 0.1"}) {
    EXPECT_NE(refused(std::string("topk:density=") + value).find("density must be a number"),
              std::string::npos);
  }
  EXPECT_NE(refused("topk:feedback=yes").find("on, off"), std::string::npos);
  EXPECT_NE(refused("topk:density=0.1,density=0.2").find("twice"), std::string::npos);
}

// Each value is in range, but together they are wrong.
TEST(Spec, RefusesOptionsThatContradictEachOther) {
  const auto refused = [](const std::string& text) {
    return thrown_text(ErrorCode::bad_spec, [&] { (void)Spec::parse(text); });
  };
  EXPECT_NE(refused("dqsg:levels=4").find("levels must be odd"), std::string::npos);
  EXPECT_NE(refused("ndqsg:levels=4,nested=3").find("multiple of nested"), std::string::npos);
  EXPECT_NE(refused("ndqsg:levels=3,nested=3").find("multiple of nested"), std::string::npos);
  EXPECT_NE(refused("gradiveq:sampling=phases").find("add feedback=off"), std::string::npos);
  EXPECT_NE(refused("fft:bits=4,mantissa=9").find("smaller than bits"), std::string::npos);
  EXPECT_NE(refused("fft:theta=auto,schedule=linear").find("needs schedule=constant"),
            std::string::npos);
  // The same holds for the second method, and for both together.
  EXPECT_NE(refused("gradiveq+dqsg:levels=4").find("levels must be odd"), std::string::npos);
  EXPECT_NE(refused("gradiveq:sampling=phases+qsgd").find("add feedback=off"), std::string::npos);
  EXPECT_NE(refused("gradiveq+qsgd:feedback=on").find("own feedback covers"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:clip=2").find("clip must be 0"), std::string::npos);
}

TEST(Registry, MethodsThatComposeCanCheckIt) {
  for (const MethodInfo& info : methods()) {
    EXPECT_EQ(!info.composes_with.empty(), static_cast<bool>(info.make_composed)) << info.name;
    EXPECT_EQ(!info.composes_with.empty(), static_cast<bool>(info.check_composed)) << info.name;
  }
}

TEST(Registry, NamesAndWireIdsAreUnique) {
  std::set<std::string> names;
  std::set<std::uint16_t> ids;
  for (const MethodInfo& info : methods()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(ids.insert(info.wire_id).second) << info.name;
    EXPECT_NE(info.wire_id, 0) << "0 is for agreements";
    EXPECT_FALSE(info.summary.empty());
    EXPECT_FALSE(info.paper.empty());
  }
}

}  // namespace
}  // namespace thinreduce::spec_test

#include "thinreduce/methods/auto.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"

namespace thinreduce {
namespace {

// A candidate beside fp32.
struct Listed {
  std::string_view method;
  std::string_view spec;
  Role role = Role::other;
};

// Most exact first, and within a method the finer before the coarser: trials stop at the first that
// is too coarse. Methods that learn over many steps (gradiveq, powersgd), that need a second moment
// (variance) or that act as the optimizer (sketch) are not here: a trial on a sample says nothing
// about them.
constexpr std::array kList = {
    Listed{"bf16", "bf16", Role::halved},
    Listed{"dqsg", "dqsg:levels=31", Role::ladder},
    Listed{"dqsg", "dqsg:levels=15", Role::ladder},
    Listed{"fft", "fft:theta=0.5"},
    Listed{"dqsg", "dqsg", Role::ladder},
    Listed{"ndqsg", "ndqsg", Role::substitute},
    Listed{"fft", "fft"},
    Listed{"topk", "topk"},
    Listed{"terngrad", "terngrad"},
    Listed{"dqsg", "dqsg:levels=3", Role::ladder},
    Listed{"topk", "topk:density=0.01"},
    Listed{"qsgd", "qsgd:bits=4"},
};

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Listed& listed : kList) {
    if (std::find(names.begin(), names.end(), listed.method) == names.end()) {
      names.emplace_back(listed.method);
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

}  // namespace

const MethodInfo& auto_info() {
  static const MethodInfo info{
      .name = "auto",
      .wire_id = 0xFFFF,
      .summary =
          "Chooses a method per bucket. It measures the link, and the speed and error of the "
          "methods on a sample of the training's own gradients, and chooses the fastest methods "
          "whose error is within a bound. That may be fp32.",
      .paper = "none",
      .options = {OptionInfo::number(
                      "error", 0.05, 0, 1000,
                      "Max error that a method may have: the squared error of a step's "
                      "mean, relative to the mean's own sum of squares. It is measured per "
                      "bucket."),
                  OptionInfo::names("methods", joined(method_names()), method_names(),
                                    "Methods to choose from, beside fp32. auto tries its own "
                                    "settings of each; `thinreduce plan` lists them."),
                  OptionInfo::choice("try", "useful", {"useful", "all"},
                                     "Which of these methods are tried. useful: those that may "
                                     "shorten a step. all: every one, which takes longer "
                                     "(`thinreduce plan` does so).")},
      .make = [](const Options&, const MethodSetup&) -> std::unique_ptr<Method> {
        throw Error(ErrorCode::bad_spec,
                    "'auto' chooses a method in a training run; here, name the method");
      },
      .cycle = [](const Options&) { return Cycle{.start = 2, .steps = 1}; }};
  return info;
}

AutoOptions auto_options(const Spec& spec) {
  AutoOptions result;
  result.max_error = spec.options.number("error");
  result.try_all = spec.options.text("try") == "all";
  result.candidates.push_back({Spec::parse("fp32"), Role::uncompressed});
  const auto allowed = spec.options.names("methods");
  for (const Listed& listed : kList) {
    if (std::find(allowed.begin(), allowed.end(), listed.method) == allowed.end()) continue;
    result.candidates.push_back({Spec::parse(listed.spec), listed.role});
  }
  return result;
}

}  // namespace thinreduce

#include "thinreduce/methods/ndqsg/ndqsg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/ndqsg/nested_gather.h"
#include "thinreduce/methods/ndqsg/side_information.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/methods/quantize/quantized_owner.h"

namespace thinreduce {
namespace {

constexpr long long kMaxLevels = 127;  // codes of one side fit into 7 bits

// The owners' plain codes need no side information. It is kept all the same: a saved state has the
// same fields for any number of ranks.
class NdqsgOwner final : public Method {
 public:
  explicit NdqsgOwner(std::unique_ptr<Method> plain) : plain_(std::move(plain)) {}

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    plain_->reduce(bucket, exchange);
    exchange.statistics["nested"] = 0;
    exchange.statistics["nested_fraction"] = 0;
  }
  void add_residual(std::span<float> values) override { plain_->add_residual(values); }
  void state(Archive& archive) override {
    plain_->state(archive);
    side_.state(archive);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return side_.fingerprint(); }

 private:
  std::unique_ptr<Method> plain_;
  SideInformation side_;
};

}  // namespace

MethodInfo ndqsg_info() {
  MethodInfo info;
  info.name = "ndqsg";
  info.wire_id = 6;
  info.algebra = Algebra::staged;
  info.summary =
      "dqsg in which some ranks (the plain ones) send full codes and the others (the nested ones) "
      "send their codes modulo levels/nested, which are decoded with the mean of the plain ranks.";
  info.paper = "Abdi and Fekri 2019, Nested Dithered Quantization for Communication Reduction";
  info.options = {
      OptionInfo::integer(
          "levels", 3, 2, kMaxLevels,
          "Number of fine quantization levels on one side of zero, so 2*levels + 1 in "
          "total (the paper's M1); must be a multiple of nested and at least "
          "2*nested."),
      OptionInfo::integer("nested", 1, 1, 63,
                          "Number of coarse levels on each side of zero (the paper's M2); nested "
                          "codes take levels/nested values."),
      OptionInfo::number("alpha", 1, 0.5, 1,
                         "Weight of a nested rank's own value against the mean of the plain ranks. "
                         "auto: chosen per step from the distances between a rank's values and "
                         "that mean. Below 1, a value is pulled towards that mean and is no "
                         "longer unbiased.")
          .or_word("auto"),
      OptionInfo::number("plain_fraction", 0.5, 0, 1,
                         "Fraction of the ranks that send plain codes; their mean decodes the "
                         "nested codes of the others. At least one rank sends plain codes.")
          .formerly("share"),
      block_option(512),
      OptionInfo::number("failures", 0, 0, 1,
                         "Tolerated fraction, in a run of 64 elements, of nested values that are "
                         "decoded wrongly; above it, the run is sent in plain codes. 0: no "
                         "value is decoded wrongly. 1: all codes are nested, as in the paper.")
          .for_paper(),
      entropy_option(),
      feedback_option(),
      gather_or_owner_option("plain codes to the owners of their elements, each of which sends the "
                             "mean of its range to all; "
                             "alpha, failures, nested and plain_fraction are then ignored"),
      answer_levels_option(kDitheredAnswerLevels),
  };
  info.presets = {{"paper",
                   "levels=3,nested=1,plain_fraction=0.5,block=layer,failures=1,collective=gather",
                   "Uses one scale per tensor; half of the ranks send all of their codes nested."}};
  info.check = [](const Options& options) {
    check_answer_levels("ndqsg", options);
    const long long levels = options.integer("levels");
    const long long nested = options.integer("nested");
    if (levels % nested != 0 || levels == nested) {
      throw Error(
          ErrorCode::bad_spec,
          fmt::format("ndqsg: levels must be a multiple of nested and at least 2*nested "
                      "(got levels={}, nested={}); change one of them, for example levels={}",
                      levels, nested,
                      std::min(kMaxLevels / nested, std::max(2LL, levels / nested)) * nested));
    }
  };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    const auto levels = static_cast<std::uint32_t>(options.integer("levels"));
    check_quantizer("ndqsg", setup, levels);
    NestedGatherOptions settings;
    settings.quantizer = block_quantizer(options, setup, levels);
    // No rank has side information before it sends its part, so all codes are plain.
    if (codes_by_owners(options, setup)) {
      return std::make_unique<NdqsgOwner>(
          make_quantized_owner({.name = "ndqsg",
                                .quantizer = settings.quantizer,
                                .feedback = options.on("feedback"),
                                .entropy = options.on("entropy"),
                                .seed = setup.seed,
                                .answer_levels_per_side = answer_levels_per_side(
                                    options, kDitheredAnswerLevels, setup.world)}));
    }
    settings.ratio = levels / static_cast<std::uint32_t>(options.integer("nested"));
    settings.failures = options.number("failures");
    if (options.text("alpha") != "auto") settings.alpha = options.number("alpha");
    const double group = std::round(options.number("plain_fraction") * setup.world);
    settings.first_group = std::max(1, static_cast<int>(group));
    settings.entropy = options.on("entropy");
    settings.feedback = options.on("feedback");
    settings.seed = setup.seed;
    return make_nested_gather(settings);
  };
  return info;
}

}  // namespace thinreduce

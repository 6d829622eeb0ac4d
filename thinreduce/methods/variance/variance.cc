#include "thinreduce/methods/variance/variance.h"

#include <memory>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/variance/options.h"
#include "thinreduce/methods/variance/payload.h"
#include "thinreduce/methods/variance/variance_owner.h"
#include "thinreduce/methods/variance/waiting_sums.h"

namespace thinreduce {
namespace {

class VarianceGather final : public Method {
 public:
  VarianceGather(const BucketLayout& layout, const VarianceOptions& options)
      : sums_(layout, options), payload_(options.format, sums_.tensors_in(sums_.all())) {}

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    exchange.statistics["owner"] = 0;
    exchange.timed(Stage::encode, [&] { sums_.collect(bucket); });
    try {
      exchange.timed(Stage::encode, [&] {
        sums_.encode(sums_.all(), sent_);
        payload_.write(sent_, bytes_);
      });
      const float share = 1.0F / static_cast<float>(exchange.size());
      incoming_.clear();
      gather(exchange, bytes_, payload_.limit(), [&](int, std::span<const std::byte> payload) {
        incoming_.push_back(payload);
        if (static_cast<int>(incoming_.size()) < exchange.size()) return;
        payload_.add_up(incoming_, share, bucket.values);
      });
    } catch (...) {
      sums_.keep_waiting();
      throw;
    }
    exchange.timed(Stage::encode, [&] { sums_.settle(sums_.all(), sent_); });
    sums_.finish(bucket, exchange);
  }

  void add_residual(std::span<float> values) override { sums_.add_to(values); }
  void state(Archive& archive) override { sums_.state(archive); }

 private:
  WaitingSums sums_;
  VariancePayload payload_;
  VarianceSent sent_;
  std::vector<std::byte> bytes_;
  std::vector<std::span<const std::byte>> incoming_;  // by rank
};

}  // namespace

MethodInfo variance_info() {
  MethodInfo info;
  info.name = "variance";
  info.wire_id = 12;
  info.algebra = Algebra::gather;
  info.summary =
      "Sums each element's gradient over steps and sends the sum once it stands out against the "
      "spread of its samples: 4 bits and an index per sent element.";
  info.paper =
      "Tsuzuku, Imachi and Akiba 2018, Variance-based Gradient Compression for Efficient "
      "Distributed Deep Learning";
  info.second_moment = true;
  info.options = variance_option_infos();
  info.losses = [](const Options& options) {
    return Losses{.discards = options.text("residual") == "drop"};
  };
  info.presets = {
      {"paper", "alpha=1.5,zeta=0.999,full=0,residual=drop,index=28bit,collective=gather",
       "Uses the same alpha for all tensors, discards rounding errors, and takes a 32-bit word per "
       "sent element."}};
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    require_32bit_indices("variance", setup.layout);
    const VarianceOptions read(options);
    // How much is sent depends on the gradient; this is a common ratio.
    const double bytes = static_cast<double>(setup.layout.elements) * sizeof(float) / 100;
    if (by_owners(options, setup, {.payload_bytes = bytes, .owner_payloads = 2.2})) {
      return make_variance_owner(setup.layout, read);
    }
    return std::make_unique<VarianceGather>(setup.layout, read);
  };
  return info;
}

}  // namespace thinreduce

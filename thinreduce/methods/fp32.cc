#include "thinreduce/methods/fp32.h"

#include "thinreduce/collective/float_sum.h"

namespace thinreduce {
namespace {

class Fp32 final : public Method {
 public:
  void reduce(const Bucket& bucket, Exchange& exchange) override {
    sum_floats(exchange, bucket.values, 1.0F / static_cast<float>(exchange.size()));
  }
};

}  // namespace

MethodInfo fp32_info() {
  return {.name = "fp32",
          .wire_id = 1,
          .algebra = Algebra::sum,
          .summary =
              "Uncompressed float32, summed in whichever way is fastest on the link: the baseline "
              "of every "
              "comparison.",
          .paper = "Patarasuk & Yuan 2009 (ring all-reduce)",
          .compresses = false,
          .options = {},
          .make = [](const Options&, const MethodSetup&) { return std::make_unique<Fp32>(); }};
}

}  // namespace thinreduce

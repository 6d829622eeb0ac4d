#include "thinreduce/methods/bf16.h"

#include "thinreduce/collective/float_ring.h"
#include "thinreduce/collective/word_ring.h"
#include "thinreduce/kernels/bf16.h"

namespace thinreduce {
namespace {

// One unit is one element. A partial sum is rounded to bf16 at each hop; a rank adds its own part
// in float32.
class Bf16Ring final : public WordRing<std::uint16_t> {
 public:
  Bf16Ring(const Exchange& exchange, std::span<float> values, std::span<std::uint16_t> words)
      : WordRing(words),
        exchange_(exchange),
        values_(values),
        scale_(1.0f / static_cast<float>(exchange.size())) {}

  void encode(UnitRange range) override { kernels::to_bf16(part(values_, range), words(range)); }
  void decode(UnitRange range) override {
    kernels::from_bf16(words(range), scale_, part(values_, range));
    require_finite_sum(exchange_, part(values_, range), "element", range.begin);
  }

 private:
  void add_words(UnitRange range, int /*summed*/, std::span<const std::uint16_t> in) override {
    kernels::add_bf16(in, part(values_, range), words(range));
  }

  const Exchange& exchange_;
  std::span<float> values_;
  float scale_;
};

class Bf16 final : public Method {
 public:
  void reduce(const Bucket& bucket, Exchange& exchange) override {
    words_.resize(bucket.values.size());
    Bf16Ring ring(exchange, bucket.values, words_);
    ring_all_reduce(exchange, ring);
  }

 private:
  std::vector<std::uint16_t> words_;  // kept from step to step
};

}  // namespace

MethodInfo bf16_info() {
  MethodInfo info;
  info.name = "bf16";
  info.wire_id = 2;
  info.algebra = Algebra::sum;
  info.summary =
      "Sends bfloat16, half the bytes of float32; partial sums are rounded to nearest at every hop "
      "of "
      "the ring.";
  info.paper = "Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training";
  info.make = [](const Options&, const MethodSetup&) { return std::make_unique<Bf16>(); };
  return info;
}

}  // namespace thinreduce

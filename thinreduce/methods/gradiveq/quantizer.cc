#include "thinreduce/methods/gradiveq/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/quantize/block_codec.h"
#include "thinreduce/methods/quantize/dithered_ring.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {
namespace {

struct Streams {
  std::uint64_t seed = 0;
  std::uint32_t bucket = 0;

  [[nodiscard]] RandomKey key(std::uint64_t step, int rank) const {
    return random_key(
        {.seed = seed, .step = step, .bucket = bucket, .rank = static_cast<std::uint32_t>(rank)});
  }
};

// Integer codes with steps that the ranks agree on first.
class SummedCodes final : public ProjectionQuantizer {
 public:
  SummedCodes(const BlockQuantizer& grid, double clip, const Streams& streams)
      : grid_(grid), clip_(clip), streams_(streams), largest_(grid.blocks()) {}

  void reduce(const Parts& parts, std::uint64_t step, Exchange& exchange) override {
    exchange.timed(Stage::encode, [&] { grid_.measure(parts.own, 0, clip_, largest_); });
    agree_on_largest(exchange, largest_, own_largest_);
    keys_.clear();
    for (int rank = 0; rank < exchange.size(); ++rank) keys_.push_back(streams_.key(step, rank));
    DitheredRing codes({.grid = grid_,
                        .source = parts.own,
                        .mean = parts.sum,
                        .largest = largest_,
                        .measure = false,
                        .clip = clip_,
                        .keys = keys_,
                        .rank = exchange.rank()},
                       buffers_);
    ring_all_reduce(exchange, codes);
    exchange.timed(Stage::decode, [&] {
      kernels::scale(parts.sum, static_cast<float>(exchange.size()));
      std::fill(parts.sent.begin(), parts.sent.end(), 0.0f);
      codes.subtract_own(parts.sent);
      kernels::scale(parts.sent, -1.0f);
    });
  }

 private:
  BlockQuantizer grid_;
  double clip_;
  Streams streams_;
  std::vector<float> largest_, own_largest_;
  std::vector<RandomKey> keys_;
  DitheredSumBuffers buffers_;
};

// Every rank has steps of its own and decodes all payloads.
class GatheredCodes final : public ProjectionQuantizer {
 public:
  GatheredCodes(const QuantizedGatherOptions& options, const Streams& streams)
      : options_(options), quantizer_(options_, options_.grid), streams_(streams) {}

  void reduce(const Parts& parts, std::uint64_t step, Exchange& exchange) override {
    exchange.timed(Stage::encode, [&] {
      quantizer_.write(parts.own, streams_.key(step, exchange.rank()), payload_);
    });
    gather(exchange, payload_, quantizer_.limit(),
           [&](int rank, std::span<const std::byte> payload) {
             const bool own = rank == exchange.rank();
             quantizer_.read(
                 payload,
                 {.what = fmt::format("gradiveq+{} payload of rank {}", options_.name, rank),
                  .key = streams_.key(step, rank),
                  .share = 1,
                  .into = rank == 0 ? parts.sum : std::span<float>()},
                 [&](std::size_t first, std::span<const float> values) {
                   if (rank > 0) {
                     kernels::add(parts.sum.subspan(first, values.size()), values);
                   }
                   if (own) {
                     std::copy(values.begin(), values.end(), parts.sent.subspan(first).begin());
                   }
                 });
           });
  }

 private:
  QuantizedGatherOptions options_;
  BlockCodec quantizer_;
  Streams streams_;
  std::vector<std::byte> payload_;
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_spec, "gradiveq+" + why);
}

}  // namespace

MakeProjectionQuantizer projection_quantizer(const InnerMethod& inner, bool feedback) {
  const Options& given = inner.options;
  if (given.on("feedback")) {
    refuse(
        fmt::format("{}: the feedback of gradiveq covers what {} loses, so {} has none of its "
                    "own; leave out feedback=on behind the plus",
                    inner.name, inner.name, inner.name));
  }
  QuantizedGatherOptions options;
  options.name = inner.name;
  options.grid.block = static_cast<std::size_t>(given.integer("block"));
  options.entropy = given.on("entropy");
  bool summed = false;
  if (inner.name == "qsgd") {
    options.grid.most = (1u << (given.integer("bits") - 1)) - 1;
    options.scale = QuantizedGatherOptions::Scale::norm;
    options.rounding = QuantizedGatherOptions::Rounding::stochastic;
  } else {
    ensure(inner.name == "dqsg", "gradiveq composes with qsgd and dqsg");
    options.grid.most = static_cast<std::uint32_t>((given.integer("levels") - 1) / 2);
    options.clip = given.number("clip");
    if (options.clip > 0 && !feedback) {
      refuse("dqsg: clip needs gradiveq's feedback: what is clipped would be lost");
    }
    if (given.text("collective") == "root") {
      refuse("gradiveq+dqsg: collective must be ring or gather, not root");
    }
    summed = given.text("collective") == "ring";
  }
  return [options, summed](std::size_t elements,
                           const MethodSetup& setup) -> std::unique_ptr<ProjectionQuantizer> {
    check_quantizer("gradiveq+" + options.name, setup, options.grid.most);
    auto sized = options;
    sized.grid.elements = elements;
    const Streams streams{setup.seed, setup.layout.id};
    if (summed) return std::make_unique<SummedCodes>(sized.grid, sized.clip, streams);
    return std::make_unique<GatheredCodes>(sized, streams);
  };
}

}  // namespace thinreduce

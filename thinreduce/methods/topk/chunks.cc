#include "thinreduce/methods/topk/chunks.h"

#include <span>
#include <vector>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/topk/chunk_payload.h"
#include "thinreduce/methods/topk/codes.h"

namespace thinreduce {
namespace {

class TopKChunks final : public Method {
 public:
  TopKChunks(std::size_t elements, const TopKChunkOptions& options)
      : options_(options),
        shape_{.elements = elements, .chunk = options.chunk, .density = options.density},
        payload_(shape_, options.two_bits),
        added_(payload_.blocks()) {
    if (options_.feedback) residual_.resize(elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == shape_.elements, "top-k: the bucket must keep its size",
           bucket.values.size(), shape_.elements);
    ensure(!options_.feedback || residual_.size() == shape_.elements,
           "top-k: each element must have a residual", residual_.size(), shape_.elements);
    exchange.timed(Stage::encode, [&] { encode(bucket.values, exchange.workers); });
    exchange.statistics["owner"] = 0;
    payload_.exchange(exchange, bucket.values);
    if (!options_.feedback) return;
    // The values are delivered; until here the residual still held them.
    for (std::size_t block = 0; block < payload_.blocks(); ++block) {
      payload_.subtract_sent(block, residual_of(block));
    }
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.feedback) archive.summed("residual", residual_);
  }

 private:
  void encode(std::span<const float> gradient, Workers workers) {
    added_.assign(added_.size(), 0);
    try {
      workers.for_blocks(payload_.blocks(), [&](std::size_t block, std::size_t /*thread*/) {
        payload_.encode(block, add_to_residual(block, gradient));
      });
    } catch (...) {
      // Memory ran out: the residual must hold the gradient of all blocks.
      for (std::size_t block = 0; block < payload_.blocks(); ++block) {
        if (added_[block] == 0) (void)add_to_residual(block, gradient);
      }
      throw;
    }
  }

  // Adds a block of the gradient to its residual, if there is one; returns the values to send from.
  std::span<const float> add_to_residual(std::size_t block, std::span<const float> gradient) {
    const Range own = shape_.block(block);
    const auto added = gradient.subspan(own.begin, own.size());
    if (!options_.feedback) return added;
    const auto residual = residual_of(block);
    if (options_.decay != 1) kernels::scale(residual, options_.decay);
    kernels::add(residual, added);
    added_[block] = 1;
    return residual;
  }

  [[nodiscard]] std::span<float> residual_of(std::size_t block) {
    const Range own = shape_.block(block);
    return std::span(residual_).subspan(own.begin, own.size());
  }

  TopKChunkOptions options_;
  TopKChunkShape shape_;
  TopKChunkPayload payload_;
  std::vector<std::uint8_t> added_;  // per block: whether the residual has its gradient
  std::vector<float> residual_;
};

}  // namespace

std::unique_ptr<Method> make_topk_chunks(std::size_t elements, const TopKChunkOptions& options) {
  return std::make_unique<TopKChunks>(elements, options);
}

}  // namespace thinreduce

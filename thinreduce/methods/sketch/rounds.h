// The two rounds of Sketched-SGD: candidates from the sum of all sketches, then the exact sums of
// the candidates, of which the largest are selected. Both are sums after which every rank does the
// same work, or go through rank 0 as in the paper, which answers with its selection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/choose.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/methods/sketch/count_sketch.h"
#include "thinreduce/methods/sketch/quantum.h"
#include "thinreduce/methods/top_selector.h"

namespace thinreduce {

enum class SketchCells { f32, f16 };
enum class SketchValues { f32, i16 };
enum class SketchCollective { automatic, ring, root };

struct SketchRoundsOptions {
  std::size_t max_candidates = 0;
  std::size_t k = 0;
  SketchCells cells = SketchCells::f16;
  SketchValues values = SketchValues::i16;
  SketchCollective collective = SketchCollective::automatic;
};

// Selected elements of the bucket, ordered by index, and their sums over all ranks, the same on all
// ranks; and this rank's contribution to each sum, rounded to the quantum if there is one.
struct ExactSums {
  std::span<const std::uint32_t> indices;
  std::span<const float> sums;
  std::span<const float> given;
};

class SketchRounds {
 public:
  explicit SketchRounds(const SketchRoundsOptions& options) : options_(options) {}

  // Starts a step: tells the other ranks the largest_finite() of this rank's values, so that the
  // second round need not ask.
  void begin(Exchange& exchange, float largest);

  // Begins the second round for the nominees, whose values then travel while the first round goes
  // on; `own` are this rank's values of all elements. Without effect where this is not possible.
  void begin_nominees(Exchange& exchange, std::span<const std::uint32_t> nominees,
                      std::span<const float> own);

  struct Search {
    CountSketch& sketch;  // this rank's sketch; becomes the sum
    const BucketLayout& layout;
    std::span<const std::uint32_t>
        nominees;  // elements that are candidates anyway and not in the sketches
  };
  // Returns the elements with the largest estimates from the sum of all sketches, without raw
  // tensors and nominees. Throws Error{bad_frame} if a sum is not finite. The result is valid until
  // the next call.
  [[nodiscard]] std::span<const std::uint32_t> find_candidates(Exchange& exchange,
                                                               const Search& search);

  // Returns the k candidates of largest sum; they must be those that were found, and the nominees.
  // `own` are this rank's values of all elements.
  [[nodiscard]] ExactSums find_largest(Exchange& exchange,
                                       std::span<const std::uint32_t> candidates,
                                       std::span<const float> own);

  // Forgets messages in flight, after an error.
  void abandon();

 private:
  // The multiples of some elements, and their sums over all ranks.
  struct Summed {
    std::vector<std::int16_t> own;
    std::vector<std::int16_t> room;
    std::vector<float> sums;
  };
  // The sum of the nominees' multiples, in flight.
  struct Early {
    std::vector<std::uint32_t> elements;
    Summed values;
    std::unique_ptr<SumCodec> codec;
    std::unique_ptr<OwnerSumInParts> sum;  // null: none is in flight
  };

  void round_own(std::span<const std::uint32_t> elements, std::span<const float> own,
                 Workers workers, Summed& into) const;
  void sum_candidates(Exchange& exchange, std::span<const std::uint32_t> candidates,
                      std::span<const float> own);
  void join_nominees(Exchange& exchange, std::span<const std::uint32_t> candidates,
                     std::span<const float> own);
  [[nodiscard]] SumOptions sum_options() const {
    SumOptions options;
    if (options_.collective == SketchCollective::ring) options.by = SumBy::ring;
    return options;
  }
  void sum_cells(Exchange& exchange, std::span<float> cells);
  [[nodiscard]] std::vector<std::byte> pack_cells(std::span<const float> cells, float scale) const;
  void select_candidates(const Search& search, Workers workers);
  void candidates_through_root(Exchange& exchange, const Search& search);
  void select_largest(Exchange& exchange, std::span<const std::uint32_t> candidates);
  void largest_through_root(Exchange& exchange, std::span<const std::uint32_t> candidates);
  void add_part(std::span<const std::byte> payload, int rank);
  void collect_given(std::span<const std::uint32_t> candidates, std::span<const float> own,
                     Workers workers);

  SketchRoundsOptions options_;
  TopSelector candidate_selector_;
  std::vector<std::vector<float>> estimates_;  // of a run, by thread
  std::vector<Range> raw_;                     // elements that are no candidates
  TopSelector largest_selector_;
  std::vector<std::uint32_t> candidates_;
  std::vector<float> exact_;
  std::optional<QuantumAgreement> agreement_;  // of the current step
  std::optional<SharedQuantum> quantum_;       // the same
  Early early_;
  Summed found_;
  std::vector<std::int16_t> multiples_;  // this rank's multiples at the candidates
  std::vector<std::int16_t> room_;
  std::vector<float> given_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> sums_;
};

}  // namespace thinreduce

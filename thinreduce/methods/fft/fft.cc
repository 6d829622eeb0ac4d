#include "thinreduce/methods/fft/fft.h"

#include <algorithm>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/fft/fft_method.h"
#include "thinreduce/methods/fft/fft_owner.h"
#include "thinreduce/methods/gather_or_owner.h"

namespace thinreduce {
namespace {

// Elements per piece: 2 MiB, small enough that its unpacked payloads stay in the L2 cache, large
// enough that the time per frame does not count. Must be a power of two.
constexpr std::size_t kPieceFloats = std::size_t{1} << 19;

class FftGather final : public FftMethod {
 public:
  FftGather(const MethodSetup& setup, const FftOptions& options)
      : FftMethod(setup, options),
        world_(static_cast<std::size_t>(setup.world)),
        kept_energy_(world_) {}

 private:
  double reduce_spectrum(const Bucket& bucket, Exchange& exchange, double theta) override {
    exchange.statistics["owner"] = 0;
    workers_ = exchange.workers;
    while (sums_.size() < workers_.threads()) sums_.emplace_back(run_groups() * group_floats());
    std::fill(kept_energy_.begin(), kept_energy_.end(), 1.0f);
    const PieceWork work{
        .pieces = (blocks().groups() + piece_groups() - 1) / piece_groups(),
        .limit = fft_payload_limit(shape_of({0, piece_groups()})),
        .batch = workers_.threads() > 1 ? 4 * workers_.threads() : 1,
        .write = [&](Range pieces) { write(pieces); },
        .piece = [&](std::size_t piece) -> std::span<const std::byte> { return written_[piece]; },
        .take = [&](Range pieces, auto payloads) { take(pieces, payloads, bucket.values); }};
    written_.resize(work.pieces);
    exchange.timed(Stage::encode, [&] { select(bucket.values, 1 - theta, {}, workers_); });
    gather_pieces(exchange, work);
    double kept = 0;
    for (const float fraction : kept_energy_) kept += fraction;
    return kept / static_cast<double>(kept_energy_.size());
  }

  // Groups per piece; each piece has a payload of its own.
  [[nodiscard]] std::size_t piece_groups() const {
    return std::max<std::size_t>(1, kPieceFloats / group_floats());
  }
  [[nodiscard]] Groups groups_of(std::size_t piece) const {
    const std::size_t begin = piece * piece_groups();
    return {begin, std::min(begin + piece_groups(), blocks().groups())};
  }

  void write(Range pieces) {
    workers_.for_blocks(pieces.size(), [&](std::size_t i, std::size_t /*thread*/) {
      const std::size_t piece = pieces.begin + i;
      selected().write(groups_of(piece), written_[piece]);
    });
  }

  // Reads all ranks' payloads of some pieces and writes their mean. A piece with a payload that is
  // refused keeps its gradient; others may have their mean already.
  void take(Range pieces, std::span<const std::span<const std::byte>> payloads,
            std::span<float> values) {
    read_.resize(std::max(read_.size(), payloads.size()));
    workers_.for_blocks(pieces.size(), [&](std::size_t i, std::size_t thread) {
      const Groups groups = groups_of(pieces.begin + i);
      const auto ranks = std::span(read_).subspan(i * world_, world_);
      for (std::size_t rank = 0; rank < world_; ++rank) {
        ranks[rank].read(payloads[i * world_ + rank], shape_of(groups), static_cast<int>(rank));
      }
      deliver(groups, ranks, values, thread);
    });
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      float& kept = kept_energy_[i % world_];
      kept = std::min(kept, read_[i].kept_energy());
    }
  }

  // Adds the spectra of all ranks in rank order and transforms the sum once. Nothing here can fail.
  void deliver(Groups groups, std::span<SpectrumPiece> ranks, std::span<float> values,
               std::size_t thread) {
    for_runs(groups, [&](Groups run) {
      const auto sum = std::span<float>(sums_[thread]).first(run.size() * group_floats());
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (SpectrumPiece& rank : ranks) rank.add_next(sum);
      write_mean(run, sum, static_cast<int>(world_), values, thread);
    });
  }

  std::size_t world_;
  Workers workers_;                              // of the current step
  std::vector<kernels::AlignedFloats> sums_;     // of all ranks' spectra of a run, by thread
  std::vector<float> kept_energy_;               // by rank
  std::vector<SpectrumPiece> read_;              // some pieces of all ranks
  std::vector<std::vector<std::byte>> written_;  // this rank's payload of each piece
};

}  // namespace

MethodInfo fft_info() {
  MethodInfo info;
  info.name = "fft";
  info.wire_id = 9;
  info.algebra = Algebra::gather;
  info.summary =
      "Transforms blocks of the gradient and sends the strongest frequencies as floats of a few "
      "bits.";
  info.paper =
      "Wang et al. 2020, FFT-based Gradient Sparsification for the Distributed Training of Deep "
      "Neural Networks, arXiv 1811.08596";
  info.options = fft_option_infos();
  info.presets = {{"paper", "theta=0.85,bits=10,block=16384,feedback=off,collective=gather",
                   "Uses long blocks and no error feedback."}};
  info.check = [](const Options& options) { (void)read_fft_options(options); };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    require_32bit_indices("fft", setup.layout);
    const FftOptions read = read_fft_options(options);
    // A bucket's payload is about 1/17 of its floats with the default options.
    const double bytes = static_cast<double>(setup.layout.elements) * sizeof(float) / 17;
    if (by_owners(options, setup,
                  {.payload_bytes = bytes,
                   .owner_payloads = 2.2,
                   .max_ranks_to_gather = kMaxRanksToGatherSparse})) {
      return make_fft_owner(setup, read);
    }
    return std::make_unique<FftGather>(setup, read);
  };
  return info;
}

}  // namespace thinreduce

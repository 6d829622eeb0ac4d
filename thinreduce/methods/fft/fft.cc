#include "thinreduce/methods/fft/fft.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/kernels/floats.h"
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
        sum_(run_groups() * group_floats()),
        kept_energy_(static_cast<std::size_t>(setup.world)),
        ranks_(static_cast<std::size_t>(setup.world)) {}

 private:
  double reduce_spectrum(const Bucket& bucket, Exchange& exchange, double theta) override {
    exchange.statistics["owner"] = 0;
    delivered_ = 0;
    std::fill(kept_energy_.begin(), kept_energy_.end(), 1.0f);
    const double pairs = pairs_of({0, blocks().groups()});
    const PieceWork work{.pieces = (blocks().groups() + piece_groups() - 1) / piece_groups(),
                         .limit = fft_payload_limit(shape_of({0, piece_groups()})),
                         .write =
                             [&](std::size_t piece) {
                               selected().write(groups_of(piece), written_[piece]);
                               return std::span<const std::byte>(written_[piece]);
                             },
                         .take =
                             [&](std::size_t piece, auto payloads) {
                               read(groups_of(piece), payloads);
                               deliver(groups_of(piece), bucket.values);
                             }};
    try {
      written_.resize(work.pieces);
      exchange.timed(Stage::encode, [&] {
        selected().select(blocks(), {.values = bucket.values, .more = residual(), .skip = {}},
                          static_cast<std::size_t>(std::ceil((1 - theta) * pairs)));
      });
      gather_pieces(exchange, work);
    } catch (...) {
      if (feedback()) put_back(bucket.values);
      throw;
    }
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

  // Reads all ranks' payloads of one piece. If it throws, neither residual nor mean has changed.
  void read(Groups groups, std::span<const std::span<const std::byte>> payloads) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].read(payloads[rank], shape_of(groups), static_cast<int>(rank));
      kept_energy_[rank] = std::min(kept_energy_[rank], ranks_[rank].kept_energy());
    }
  }

  // Updates the residual, adds the spectra of all ranks in rank order and transforms the sum once.
  // The residual is updated before the mean overwrites the gradient. Nothing here can fail.
  void deliver(Groups groups, std::span<float> values) {
    for_runs(groups, [&](Groups run) {
      if (feedback()) {
        add_gradient(run, values);
        add_sent(run, -1);
      }
      const auto sum = std::span<float>(sum_).first(run.size() * group_floats());
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (SpectrumPiece& rank : ranks_) rank.add_next(sum);
      write_mean(run, sum, static_cast<int>(ranks_.size()), values);
    });
    delivered_ = groups.end;
  }

  // After a failed exchange: puts all of the gradient into the residual, including the pieces that
  // were already delivered.
  void put_back(std::span<const float> gradient) {
    add_sent({0, delivered_}, 1);
    add_gradient({delivered_, blocks().groups()}, gradient);
  }

  kernels::AlignedFloats sum_;                   // sum of all ranks' spectra of a run of groups
  std::vector<float> kept_energy_;               // by rank
  std::vector<SpectrumPiece> ranks_;             // one piece of all ranks
  std::vector<std::vector<std::byte>> written_;  // this rank's payload of each piece
  std::size_t delivered_ = 0;                    // groups whose mean is in the bucket
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
  info.check = [](const Options& options) { (void)read_fft_options(options); };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    require_32bit_indices("fft", setup.layout);
    const FftOptions read = read_fft_options(options);
    // A bucket's payload is about 1/17 of its floats with the default options.
    const double bytes = static_cast<double>(setup.layout.elements) * sizeof(float) / 17;
    if (by_owners(options, setup, {.payload_bytes = bytes, .owner_payloads = 2.2})) {
      return make_fft_owner(setup, read);
    }
    return std::make_unique<FftGather>(setup, read);
  };
  return info;
}

}  // namespace thinreduce

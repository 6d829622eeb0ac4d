#include "thinreduce/methods/fft/fft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/fft/blocks.h"
#include "thinreduce/methods/fft/options.h"
#include "thinreduce/methods/fft/pair_selector.h"
#include "thinreduce/methods/fft/payload.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// mantissa=auto: the error is measured on about this many values.
constexpr std::size_t kFormatSample = 2048;

// Elements per piece: 2 MiB, small enough that its unpacked payloads stay in the L2 cache, large
// enough that the time per frame does not count. Must be a power of two.
constexpr std::size_t kPieceFloats = std::size_t{1} << 19;
constexpr std::size_t kSegmentFloats = 2 * kSegmentPairs;

// The threshold is guessed from one group in this many: from at least 16 groups, or from all groups
// of a small bucket.
std::size_t sample_stride(std::size_t groups) {
  return std::clamp<std::size_t>(groups / 16, 1, 32);
}

class Fft final : public Method {
 public:
  Fft(const MethodSetup& setup, const FftOptions& options)
      : options_(options),
        elements_(setup.layout.elements),
        blocks_(setup.layout, options.block_length, options.transform),
        group_(blocks_.group_floats()),
        sum_(run_groups() * group_.size()),
        kept_energy_(static_cast<std::size_t>(setup.world)),
        ranks_(static_cast<std::size_t>(setup.world)) {
    if (options_.feedback) {
      residual_.resize(elements_);
      sent_.resize(sum_.size());
    }
    const std::size_t stride = sample_stride(blocks_.groups());
    sample_.resize((blocks_.groups() + stride - 1) / stride * group_.size());
    bitmap_.resize(blocks_.groups() * group_words());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "fft: the bucket must keep its size",
           bucket.values.size(), elements_);
    ensure(!options_.feedback || residual_.size() == elements_,
           "fft: each element must have a residual", residual_.size(), elements_);
    const double theta =
        options_.control ? options_.control->theta() : options_.schedule.at(exchange.id().step);
    delivered_ = 0;
    std::fill(kept_energy_.begin(), kept_energy_.end(), 1.0f);
    const auto own = static_cast<std::size_t>(exchange.rank());
    const PieceWork work{
        .pieces = (blocks_.groups() + piece_groups() - 1) / piece_groups(),
        .limit = fft_payload_limit({piece_groups() * group_words(), options_.bits}),
        .write =
            [&](std::size_t piece) {
              write(groups_of(piece), written_[piece]);
              return std::span<const std::byte>(written_[piece]);
            },
        .take =
            [&](std::size_t piece, auto payloads) {
              read(groups_of(piece), payloads);
              deliver(groups_of(piece), bucket.values, own);
            }};
    try {
      written_.resize(work.pieces);
      exchange.timed(Stage::encode, [&] { select(bucket.values, theta); });
      gather_pieces(exchange, work);
    } catch (...) {
      put_back(bucket.values, own);
      throw;
    }
    report(exchange, theta);
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.feedback) archive.summed("residual", residual_);
    if (options_.control) {
      double theta = options_.control->theta();
      archive.real("theta", theta, {0, options_.control->max_theta()});
      options_.control->set_theta(theta);
    }
  }

  [[nodiscard]] std::uint64_t fingerprint() const override {
    if (!options_.control) return 0;
    const double theta = options_.control->theta();
    return checksum(std::as_bytes(std::span(&theta, 1)));
  }

 private:
  // Groups per piece; each piece has a payload of its own.
  [[nodiscard]] std::size_t piece_groups() const {
    return std::max<std::size_t>(1, kPieceFloats / group_.size());
  }
  // Groups per run: a run starts with a group and with a segment of the payload.
  [[nodiscard]] std::size_t run_groups() const {
    return std::max<std::size_t>(1, kSegmentFloats / group_.size());
  }
  [[nodiscard]] std::size_t group_words() const {
    return group_.size() / (2 * kernels::kPairsPerWord);
  }
  struct Groups {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Groups groups_of(std::size_t piece) const {
    const std::size_t begin = piece * piece_groups();
    return {begin, std::min(begin + piece_groups(), blocks_.groups())};
  }

  // Transforms gradient plus residual and selects the strongest pairs of the whole bucket. A sample
  // of the groups is transformed first, so that one pass over the bucket suffices.
  void select(std::span<const float> gradient, double theta) {
    const double pairs = static_cast<double>(blocks_.blocks() * blocks_.block_length()) / 2;
    const auto k = static_cast<std::size_t>(std::ceil((1 - theta) * pairs));
    const std::size_t stride = sample_stride(blocks_.groups());
    for (std::size_t group = 0; group < blocks_.groups(); group += stride) {
      blocks_.to_spectrum(group, gradient, residual_, sampled(group / stride));
    }
    selector_.start(selector_.guess(sample_, 1 - theta), bitmap_);
    for (std::size_t group = 0; group < blocks_.groups(); ++group) {
      const bool is_sampled = group % stride == 0;
      if (!is_sampled) blocks_.to_spectrum(group, gradient, residual_, group_);
      selector_.add(is_sampled ? sampled(group / stride) : std::span<const float>(group_));
    }
    if (!selector_.can_find(k)) {
      selector_.start(selector_.everything(), bitmap_);
      for (std::size_t group = 0; group < blocks_.groups(); ++group) {
        blocks_.to_spectrum(group, gradient, residual_, group_);
        selector_.add(group_);
      }
    }
    const auto selected = selector_.finish(k);
    unsent_ = selected.values;
    measure_energy(selected);
    choose_format(selected.values);
  }
  [[nodiscard]] std::span<float> sampled(std::size_t index) {
    return std::span<float>(sample_).subspan(index * group_.size(), group_.size());
  }

  void measure_energy(const kernels::PairSelector::Result& selected) {
    // Several independent sums hide the latency of the additions.
    std::array<double, 8> sums{};
    for (std::size_t i = 0; i < selected.values.size(); ++i) {
      const double scaled = static_cast<double>(selected.values[i]) * selected.scale;
      sums[i % sums.size()] += scaled * scaled;
    }
    const double kept = std::accumulate(sums.begin(), sums.end(), 0.0);
    const bool finite = std::isfinite(selected.energy);
    head_.overflow = !finite && kernels::first_nonfinite(selected.values) < selected.values.size();
    head_.kept_energy = finite && selected.energy > 0
                            ? static_cast<float>(std::min(kept / selected.energy, 1.0))
                            : 1.0f;
  }

  // Chooses the range float of this step. Coefficients beyond kMaxCoefficient are clipped; the
  // clipped part stays in the residual.
  void choose_format(std::span<const float> values) {
    kernels::ValueRange range = kernels::range_of(values);
    range.min = std::max(range.min, -kMaxCoefficient);
    range.max = std::min(range.max, kMaxCoefficient);
    if (options_.mantissa) {
      head_.format = kernels::RangeFloat::covering(range, options_.bits, *options_.mantissa);
      return;
    }
    format_sample_.clear();
    const std::size_t stride = values.size() / kFormatSample + 1;
    for (std::size_t i = 0; i < values.size(); i += stride) format_sample_.push_back(values[i]);
    head_.format = kernels::RangeFloat::fitting(range, options_.bits, format_sample_);
  }

  // Pieces are written in order, so the values of this one are at the front of `unsent_`.
  void write(Groups groups, std::vector<std::byte>& payload) {
    const auto bitmap = std::span<const std::uint64_t>(bitmap_).subspan(
        groups.begin * group_words(), (groups.end - groups.begin) * group_words());
    codes_.resize(2 * kernels::count_pairs(bitmap));
    if (!head_.overflow) kernels::quantize(head_.format, unsent_.first(codes_.size()), codes_);
    unsent_ = unsent_.subspan(codes_.size());
    write_fft_payload(head_, {bitmap, codes_}, payload);
  }

  // Reads all ranks' payloads of one piece. If it throws, neither residual nor mean has changed.
  void read(Groups groups, std::span<const std::span<const std::byte>> payloads) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      read_fft_payload(payloads[rank], shape_of(groups), static_cast<int>(rank),
                       ranks_[rank].pairs);
      ranks_[rank].segment = ranks_[rank].next = 0;
      kept_energy_[rank] = std::min(kept_energy_[rank], ranks_[rank].pairs.head.kept_energy);
    }
  }
  [[nodiscard]] PayloadShape shape_of(Groups groups) const {
    return {(groups.end - groups.begin) * group_words(), options_.bits};
  }

  // One rank's payload of a piece, and how far add_pairs() has got in it.
  struct RankPiece {
    SparseSpectrum pairs;
    std::size_t segment = 0;
    std::size_t next = 0;  // index of the next pair
  };

  // Adds the next pairs of a piece, times `sign`, to `spectrum`, which must be whole segments or
  // the end of the piece.
  void add_pairs(RankPiece& from, float sign, std::span<float> spectrum) {
    for (std::size_t first = 0; first < spectrum.size(); first += kSegmentFloats) {
      const std::size_t count = from.pairs.counts[from.segment++];
      kernels::dequantize(from.pairs.head.format,
                          std::span(from.pairs.codes).subspan(2 * from.next, 2 * count),
                          std::span(values_).first(2 * count));
      const std::uint16_t* position = from.pairs.positions.data() + from.next;
      float* to = &spectrum[first];
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = kernels::pair_offset(position[i]);
        to[at] += sign * values_[2 * i];
        to[at + kernels::kBlockLanes] += sign * values_[2 * i + 1];
      }
      from.next += count;
    }
  }

  // Adds the spectra of all ranks in rank order and transforms the sum once. The residual is
  // updated before the mean overwrites the gradient. Nothing here can fail.
  void deliver(Groups groups, std::span<float> values, std::size_t own) {
    const float share = 1.0f / static_cast<float>(ranks_.size());
    for_group_runs(groups, [&](Groups run) {
      const auto sum = std::span<float>(sum_).first((run.end - run.begin) * group_.size());
      std::fill(sum.begin(), sum.end(), 0.0f);
      if (options_.feedback) {
        RankPiece& sender = ranks_[own];
        const auto [segment, next] = std::pair(sender.segment, sender.next);
        subtract_sent(sender, run, values);
        sender.segment = segment;
        sender.next = next;
      }
      for (RankPiece& rank : ranks_) add_pairs(rank, 1, sum);
      for (std::size_t group = run.begin; group < run.end; ++group) {
        blocks_.write_scaled(group, sum.subspan((group - run.begin) * group_.size(), group_.size()),
                             share, values);
      }
    });
    delivered_ = groups.end;
  }
  template <typename Visit>
  void for_group_runs(Groups groups, Visit&& visit) {
    for (std::size_t begin = groups.begin; begin < groups.end; begin += run_groups()) {
      visit(Groups{begin, std::min(begin + run_groups(), groups.end)});
    }
  }

  // residual += gradient - sent
  void subtract_sent(RankPiece& sender, Groups run, std::span<const float> gradient) {
    for (std::size_t group = run.begin; group < run.end; ++group) add_to_residual(group, gradient);
    add_sent(sender, -1, run);
  }
  void add_to_residual(std::size_t group, std::span<const float> gradient) {
    blocks_.for_runs(group, [&](std::size_t offset, std::size_t, std::size_t length) {
      kernels::add(std::span(residual_).subspan(offset, length), gradient.subspan(offset, length));
    });
  }
  void add_sent(RankPiece& sender, float sign, Groups run) {
    const auto sent = std::span<float>(sent_).first((run.end - run.begin) * group_.size());
    std::fill(sent.begin(), sent.end(), 0.0f);
    add_pairs(sender, sign, sent);
    for (std::size_t group = run.begin; group < run.end; ++group) {
      blocks_.from_spectrum(group, sent.subspan((group - run.begin) * group_.size(), group_.size()),
                            [&](std::size_t offset, std::span<const float> floats) {
                              kernels::add(std::span(residual_).subspan(offset, floats.size()),
                                           floats);
                            });
    }
  }

  // After a failed exchange: puts all of the gradient into the residual, including the pieces that
  // were already delivered.
  void put_back(std::span<const float> gradient, std::size_t own) {
    if (!options_.feedback) return;
    for (std::size_t piece = 0; groups_of(piece).begin < delivered_; ++piece) {
      const Groups groups = groups_of(piece);
      RankPiece& sender = ranks_[own];
      read_fft_payload(written_[piece], shape_of(groups), static_cast<int>(own), sender.pairs);
      sender.segment = sender.next = 0;
      for_group_runs(groups, [&](Groups run) { add_sent(sender, 1, run); });
    }
    for (std::size_t group = delivered_; group < blocks_.groups(); ++group) {
      add_to_residual(group, gradient);
    }
  }

  // Every rank knows the kept fraction of all ranks, so all compute the same theta.
  void report(Exchange& exchange, double theta) {
    double kept = 0;
    for (const float fraction : kept_energy_) kept += fraction;
    kept /= static_cast<double>(kept_energy_.size());
    if (options_.control) options_.control->update(kept);
    if (elements_ == 0) return;
    exchange.statistics["theta"] = theta;
    exchange.statistics["kept_energy"] = kept;
    exchange.statistics["mantissa"] = head_.format.mantissa;
  }

  FftOptions options_;
  std::size_t elements_;
  FftBlocks blocks_;
  std::vector<float> residual_;                    // empty without feedback
  kernels::AlignedFloats group_;                   // spectrum of one group
  kernels::AlignedFloats sum_;                     // sum of all ranks' spectra of a run of groups
  kernels::AlignedFloats sent_;                    // this rank's sent spectrum of a run of groups
  std::array<float, 2 * kSegmentPairs> values_{};  // values of the kept pairs of one segment
  kernels::PairSelector selector_;
  kernels::AlignedFloats sample_;  // spectra of some groups, for guessing the threshold
  std::vector<float> format_sample_;
  SpectrumHead head_;
  std::vector<std::uint64_t> bitmap_;  // of the pairs that are kept
  std::span<const float> unsent_;     // values of the kept pairs, from the first unwritten piece on
  std::vector<std::uint16_t> codes_;  // of one piece
  std::vector<float> kept_energy_;    // by rank
  std::vector<RankPiece> ranks_;      // one piece of all ranks
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
  info.make = [](const Options& options, const MethodSetup& setup) {
    require_32bit_indices("fft", setup.layout);
    return std::make_unique<Fft>(setup, read_fft_options(options));
  };
  return info;
}

}  // namespace thinreduce

#include "thinreduce/methods/gradiveq/bases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "thinreduce/collective/broadcast.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gradiveq/matrix.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// Samples that a first basis rests on, in slices' lengths, if the layer has as many.
constexpr std::size_t kSamplesPerDimension = 4;
// Old samples weigh as much as so many times K new ones at most.
constexpr double kMemory = 2;
// With the energy rule: a rank above this share of the slice does not pay.
constexpr double kWorthwhileRank = 0.75;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

std::vector<GradiveqLayer> cut_layers(const GradiveqSettings& settings,
                                      const BucketLayout& layout) {
  const auto cut = [&](Slicing slicing) {
    slicing.cut(settings.slice > 0 ? settings.slice : slicing.natural_slice());
    return slicing;
  };
  std::vector<GradiveqLayer> layers;
  if (layout.tensors.empty() && layout.elements > 0) {
    layers.emplace_back();
    layers.back().name = "the bucket";
    layers.back().candidates = {cut(Slicing::of_run(0, layout.elements))};
  }
  std::vector<std::string> orders{settings.layout};
  if (settings.layout == "auto") orders = {"channel", "row", "paper"};
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.elements() == 0) continue;
    GradiveqLayer& layer = layers.emplace_back();
    layer.name = tensor.name;
    if (tensor.shape.size() < 2) {
      layer.candidates = {Slicing::of_run(tensor.offset, tensor.elements())};
      continue;
    }
    for (const auto& order : orders) {
      const Slicing slicing = cut(Slicing::of_tensor(tensor, order));
      const auto same = [&](const Slicing& other) { return other.same_order(slicing); };
      if (std::none_of(layer.candidates.begin(), layer.candidates.end(), same)) {
        layer.candidates.push_back(slicing);
      }
    }
  }
  return layers;
}

GradiveqBases::GradiveqBases(const GradiveqSettings& settings, const MethodSetup& setup,
                             std::span<GradiveqLayer> layers)
    : settings_(settings),
      rank_(setup.rank),
      world_(setup.world),
      layers_(layers),
      books_(layers.size()) {
  std::size_t longest = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const Slicing& slicing : layers[l].candidates) {
      longest = std::max(longest, slicing.slice());
      if (owns(l)) {
        books_[l].evidence.push_back(
            {SliceStatistics(slicing.slice()), SliceStatistics(slicing.slice())});
      }
    }
  }
  slice_.resize(longest);
  slice_mean_.resize(longest);
  projected_.resize(kernels::padded_columns(longest));
}

bool GradiveqBases::can_compress(std::size_t layer) const {
  return layers_[layer].slicing().slices() > 0;
}

void GradiveqBases::note_mean(Book& book, std::span<const float> sum, std::span<const float> mean) {
  book.agreement += dot(sum, mean);
  book.strength += dot(mean, mean);
}

void GradiveqBases::collect(std::size_t l, const Collect& what) {
  if (!owns(l)) return;
  const GradiveqLayer& layer = layers_[l];
  Book& book = books_[l];
  // Welford's weights: over a phase, the sum is that of the squared distances from the final mean.
  const bool phases = settings_.schedule.phases;
  const float weight = phases ? std::sqrt(1 - what.rate) : 1;
  const float mean_share = phases ? 1 : layer.mean_share;
  for (std::size_t c = 0; c < book.evidence.size(); ++c) {
    const Slicing& slicing = layer.candidates[layer.decided ? layer.chosen : c];
    const std::size_t k = slicing.slice();
    if (k == 0) continue;
    const std::size_t count = (kSamplesPerDimension * k + what.steps - 1) / what.steps;
    drawn_.clear();
    draw_slices(what.key, slicing.slices(), count, drawn_);
    book.pending.clear();
    for (const auto slice : drawn_) {
      const auto sum = std::span(slice_).first(k);
      const auto mean = std::span(slice_mean_).first(k);
      slicing.gather(what.sums, slice * k, sum);
      slicing.gather(what.mean, slice * k, mean);
      if (c == 0) note_mean(book, sum, mean);
      for (std::size_t i = 0; i < k; ++i) {
        book.pending.push_back((sum[i] - mean[i] * mean_share) * weight);
      }
    }
    const bool tests = book.evidence.size() > 1 && what.key.step % 2 == 1;
    (tests ? book.evidence[c].test : book.evidence[c].fit).add(book.pending);
    book.pending.clear();
  }
}

void GradiveqBases::learn(std::size_t l, std::size_t slice, std::span<const float> sum,
                          const MeanUpdate& update) {
  const GradiveqLayer& layer = layers_[l];
  const Slicing& slicing = layer.slicing();
  const std::size_t place = slice * slicing.slice();
  const auto mean = std::span(slice_mean_).first(sum.size());
  slicing.gather(update.mean, place, mean);
  if (owns(l)) {
    Book& book = books_[l];
    note_mean(book, sum, mean);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      book.pending.push_back(sum[i] - mean[i] * layer.mean_share);
    }
  }
  for (std::size_t i = 0; i < sum.size(); ++i) mean[i] += update.rate * (sum[i] - mean[i]);
  slicing.scatter(mean, place, update.mean);
}

void GradiveqBases::flush_samples(std::size_t l) {
  Book& book = books_[l];
  if (book.pending.empty()) return;
  book.evidence[0].fit.add(book.pending);
  book.pending.clear();
}

std::span<const float> GradiveqBases::sum_from_mean(const GradiveqLayer& layer, std::size_t slice,
                                                    std::span<const float> values, int world) {
  const std::size_t k = layer.slicing().slice();
  const auto sum = std::span(slice_).first(k);
  layer.slicing().gather(values, slice * k, sum);
  kernels::scale(sum, static_cast<float>(world));
  return sum;
}

// U is orthonormal, so what the projection holds is what is not lost.
SliceLoss GradiveqBases::measure(const GradiveqLayer& layer, std::size_t slice,
                                 std::span<const float> values, std::span<const float> mean,
                                 float share) {
  const Slicing& slicing = layer.slicing();
  const std::size_t k = slicing.slice();
  const auto own = std::span(slice_).first(k);
  const auto own_mean = std::span(slice_mean_).first(k);
  slicing.gather(values, slice * k, own);
  slicing.gather(mean, slice * k, own_mean);
  const double total = dot(own, own);
  kernels::center(own, own_mean, layer.mean_share * share, own);
  const auto projected = std::span(projected_).first(layer.basis.projected_stride());
  layer.basis.project(own, projected);
  const double lost = std::max(0.0, dot(own, own) - dot(projected, projected));
  // A gradient near the largest float has an energy beyond it.
  constexpr double kMost = 1e30;
  return {static_cast<float>(std::min(lost, kMost)), static_cast<float>(std::min(total, kMost))};
}

std::size_t GradiveqBases::rank_of(const Slicing& slicing, const Spectrum& spectrum) const {
  const auto k = static_cast<double>(slicing.slice());
  const auto& rule = settings_.rule;
  // Slices that travel whole are part of what is sent.
  const double whole =
      settings_.schedule.phases ? 0 : settings_.sample + (settings_.feedback ? settings_.flush : 0);
  double rank = std::round(k * (1 / rule.ratio - whole) / (1 - whole));
  if (rule.energy > 0) rank = static_cast<double>(spectrum.rank_for(rule.energy));
  if (rule.rank > 0) rank = static_cast<double>(rule.rank);
  return static_cast<std::size_t>(std::clamp(rank, 1.0, k));
}

// The least product of what is lost, of samples that did not shape the basis, and what is sent.
std::size_t GradiveqBases::best_candidate(std::size_t l) const {
  const auto& evidence = books_[l].evidence;
  std::size_t best = 0;
  double least = 0;
  for (std::size_t c = 0; c < evidence.size(); ++c) {
    const Slicing& slicing = layers_[l].candidates[c];
    if (slicing.slices() == 0) continue;
    const Spectrum spectrum = evidence[c].fit.spectrum();
    const std::size_t rank = rank_of(slicing, spectrum);
    const Basis basis(spectrum.columns(rank), slicing.slice(), rank);
    const auto& judge = evidence[c].test.weight() > 0 ? evidence[c].test : evidence[c].fit;
    const double energy = judge.energy();
    const double loss = energy > 0 ? std::max(0.0, 1 - judge.energy_within(basis) / energy) : 0;
    const auto sent =
        static_cast<double>(slicing.slices() * rank + slicing.elements() - slicing.sliced()) +
        static_cast<double>(slicing.slice() * rank) /
            static_cast<double>(settings_.schedule.interval);
    // What is lost costs at least a rounding: of two that lose nothing, the cheaper one.
    const double score = (loss + 1e-6) * sent;
    if (c == 0 || score < least) {
      best = c;
      least = score;
    }
  }
  return best;
}

GradiveqBases::Proposal GradiveqBases::propose(std::size_t l) {
  Book& book = books_[l];
  Proposal proposal;
  proposal.candidate = layers_[l].chosen;
  if (!layers_[l].decided && book.evidence.size() > 1) {
    proposal.candidate = best_candidate(l);
    Evidence chosen = std::move(book.evidence[proposal.candidate]);
    chosen.fit.add(chosen.test);
    chosen.test = SliceStatistics(layers_[l].candidates[proposal.candidate].slice());
    book.evidence.clear();
    book.evidence.push_back(std::move(chosen));
  }
  const Slicing& slicing = layers_[l].candidates[proposal.candidate];
  SliceStatistics& statistics = book.evidence[0].fit;
  const Spectrum spectrum = statistics.spectrum();
  proposal.rank = rank_of(slicing, spectrum);
  const bool energy_rule = settings_.rule.energy > 0 && settings_.rule.rank == 0;
  if (energy_rule &&
      static_cast<double>(proposal.rank) > kWorthwhileRank * static_cast<double>(slicing.slice())) {
    proposal.rank = 0;
  }
  proposal.columns = spectrum.columns(proposal.rank);
  if (settings_.schedule.phases) {
    proposal.mean_share = 1;
    statistics = SliceStatistics(slicing.slice());
  } else {
    // The best multiple of the mean to predict a sample with.
    if (book.strength > 0) {
      proposal.mean_share =
          static_cast<float>(std::clamp(book.agreement / book.strength, 0.0, 1.0));
    }
    statistics.forget(kMemory * static_cast<double>(slicing.slice()));
  }
  book.agreement /= 2;
  book.strength /= 2;
  return proposal;
}

void GradiveqBases::renew(const std::vector<std::size_t>& which, std::uint64_t step,
                          Exchange& exchange) {
  // All owners look for eigenvectors at the same time, then each tells the others.
  std::vector<Proposal> proposals(which.size());
  exchange.timed(Stage::encode, [&] {
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (owns(which[i])) proposals[i] = propose(which[i]);
    }
  });
  for (std::size_t i = 0; i < which.size(); ++i) {
    share(which[i], proposals[i], exchange);
    exchange.timed(Stage::decode, [&] { accept(which[i], proposals[i]); });
    books_[which[i]].renewed_at = step;
  }
}

// A head of 24 bytes: u32 candidate, u32 rank, f32 share of the mean, u32 zero, u64 checksum of the
// columns; then the columns.
void GradiveqBases::share(std::size_t l, Proposal& proposal, Exchange& exchange) const {
  const GradiveqLayer& layer = layers_[l];
  std::array<std::byte, 24> head{};
  store_value(head, 0, static_cast<std::uint32_t>(proposal.candidate));
  store_value(head, 4, static_cast<std::uint32_t>(proposal.rank));
  store_value(head, 8, proposal.mean_share);
  store_value(head, 16, checksum(std::as_bytes(std::span(proposal.columns))));
  broadcast(exchange, owner(l), head);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_frame, fmt::format("gradiveq: the basis of tensor '{}' that rank {} "
                                                  "sent in step {} {}",
                                                  layer.name, owner(l), exchange.id().step, why));
  };
  proposal.candidate = load_value<std::uint32_t>(head, 0);
  proposal.rank = load_value<std::uint32_t>(head, 4);
  proposal.mean_share = load_value<float>(head, 8);
  if (const auto zero = load_value<std::uint32_t>(head, 12); zero != 0) {
    refuse(fmt::format("has {} where 0 belongs", zero));
  }
  if (proposal.candidate >= layer.candidates.size() ||
      (layer.decided && proposal.candidate != layer.chosen)) {
    refuse(fmt::format("is for order {} of {}, where {} was chosen", proposal.candidate,
                       layer.candidates.size(), layer.chosen));
  }
  const std::size_t slice = layer.candidates[proposal.candidate].slice();
  if (proposal.rank > slice) refuse(fmt::format("has rank {} of {}", proposal.rank, slice));
  if (!(proposal.mean_share >= 0 && proposal.mean_share <= 1)) {
    refuse(fmt::format("takes off {} of the mean", proposal.mean_share));
  }
  proposal.columns.resize(slice * proposal.rank);
  broadcast(exchange, owner(l), std::as_writable_bytes(std::span(proposal.columns)));
  if (checksum(std::as_bytes(std::span(proposal.columns))) != load_value<std::uint64_t>(head, 16)) {
    refuse("was altered on its way");
  }
  // Longer columns would let the residual grow instead of shrink.
  for (std::size_t j = 0; j < proposal.rank; ++j) {
    double norm = 0;
    for (std::size_t k = 0; k < slice; ++k) {
      const double value = proposal.columns[k * proposal.rank + j];
      norm += value * value;
    }
    if (!(std::abs(norm - 1) < 1e-3)) refuse(fmt::format("has a column {} of norm {}", j, norm));
  }
}

void GradiveqBases::accept(std::size_t l, const Proposal& proposal) {
  GradiveqLayer& layer = layers_[l];
  layer.chosen = proposal.candidate;
  layer.decided = true;
  layer.mean_share = proposal.mean_share;
  layer.basis = proposal.rank == 0
                    ? Basis()
                    : Basis(proposal.columns, layer.slicing().slice(), proposal.rank);
  layer.fresh = true;
}

std::uint64_t GradiveqBases::fingerprint() const {
  std::uint64_t hash = 0;
  for (const GradiveqLayer& layer : layers_) {
    const std::uint64_t parts[] = {hash,
                                   layer.chosen,
                                   layer.slicing().slice(),
                                   layer.basis.rank(),
                                   layer.basis.hash(),
                                   std::bit_cast<std::uint32_t>(layer.mean_share)};
    hash = checksum(std::as_bytes(std::span(parts)));
  }
  return hash;
}

}  // namespace thinreduce

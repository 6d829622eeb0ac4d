#include "thinreduce/methods/gradiveq/bases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// The max weight of old samples, in new samples per float of a slice.
constexpr double kMemory = 2;
// A basis that the energy rule makes larger than this fraction of the slice does not pay.
constexpr double kWorthwhileSize = 0.75;

std::size_t basis_size(const GradiveqSettings& settings, const Slicing& slicing,
                       const Spectrum& spectrum) {
  if (settings.energy > 0) return spectrum.size_for(settings.energy);
  const auto k = static_cast<double>(slicing.slice());
  // Slices sent whole count as sent.
  const double whole =
      settings.phases ? 0 : settings.sample + (settings.feedback ? settings.flush : 0);
  const double size = std::round(k * (1 / settings.ratio - whole) / (1 - whole));
  return static_cast<std::size_t>(std::clamp(size, 1.0, k));
}

// Returns the candidate with the smallest product of loss, on samples that did not shape the basis,
// and floats sent.
std::size_t best_candidate(const GradiveqSettings& settings, const GradiveqLayer& layer) {
  std::size_t best = 0;
  double best_score = 0;
  for (std::size_t c = 0; c < layer.evidence.size(); ++c) {
    const Slicing& slicing = layer.candidates[c];
    if (slicing.slices() == 0) continue;
    const auto& [fit, test] = layer.evidence[c];
    const Spectrum spectrum = fit.spectrum();
    const std::size_t size = basis_size(settings, slicing, spectrum);
    const Basis basis(spectrum.columns(size), slicing.slice(), size);
    const SliceStatistics& judge = test.weight() > 0 ? test : fit;
    const double energy = judge.energy();
    const double loss = energy > 0 ? std::max(0.0, 1 - judge.energy_within(basis) / energy) : 0;
    const auto sent =
        static_cast<double>(slicing.slices() * size + slicing.elements() - slicing.sliced()) +
        static_cast<double>(slicing.slice() * size) / static_cast<double>(settings.interval);
    // The constant stands for rounding: of two candidates that lose nothing, the cheaper one wins.
    const double score = (loss + 1e-6) * sent;
    if (c == 0 || score < best_score) {
      best = c;
      best_score = score;
    }
  }
  return best;
}

// Returns the samples in the order of a candidate. There is one part of evidence after the
// decision.
const GradiveqLayer::Evidence& evidence_for(const GradiveqLayer& layer, std::size_t candidate) {
  return layer.evidence[layer.evidence.size() > 1 ? candidate : 0];
}

SliceStatistics joined(SliceStatistics fit, const SliceStatistics& test) {
  fit.add(test);
  return fit;
}

// Returns the evidence for the basis after the next: old samples count less, in phases not at all.
GradiveqLayer::Evidence next_evidence(const GradiveqSettings& settings, const GradiveqLayer& layer,
                                      std::size_t candidate) {
  const std::size_t slice = layer.candidates[candidate].slice();
  GradiveqLayer::Evidence next{SliceStatistics(slice), SliceStatistics(slice)};
  if (settings.phases) return next;
  const auto& [fit, test] = evidence_for(layer, candidate);
  next.fit = joined(fit, test);
  next.fit.forget(kMemory * static_cast<double>(slice));
  next.fit.reserve();
  return next;
}

// A basis on the wire: a header (u32 candidate, u32 size, f32 weight of the mean, u32 zero, u64
// checksum of the columns), then the columns.
constexpr std::size_t kHeadBytes = 24;

// Computes the basis of a layer at its keeper and appends it to the keeper's message.
void append_basis(const GradiveqSettings& settings, const GradiveqLayer& layer,
                  std::vector<std::byte>& out) {
  const std::size_t candidate =
      layer.evidence.size() > 1 ? best_candidate(settings, layer) : layer.chosen;
  const auto& [fit, test] = evidence_for(layer, candidate);
  const Spectrum spectrum = test.weight() > 0 ? joined(fit, test).spectrum() : fit.spectrum();
  const Slicing& slicing = layer.candidates[candidate];
  std::size_t size = basis_size(settings, slicing, spectrum);
  const double worthwhile = kWorthwhileSize * static_cast<double>(slicing.slice());
  if (settings.energy > 0 && static_cast<double>(size) > worthwhile) size = 0;
  const std::vector<float> columns = spectrum.columns(size);
  // The multiple of the mean that predicts a sample best.
  const double weight = layer.strength > 0 ? layer.agreement / layer.strength : 0;
  const auto bytes = std::as_bytes(std::span(columns));
  std::array<std::byte, kHeadBytes> head{};
  store_value(head, 0, static_cast<std::uint32_t>(candidate));
  store_value(head, 4, static_cast<std::uint32_t>(size));
  store_value(head, 8, settings.phases ? 1.0f : static_cast<float>(std::clamp(weight, 0.0, 1.0)));
  store_value(head, 16, checksum(bytes));
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Returns the maximum bytes of a layer's basis on the wire.
std::size_t basis_limit(const GradiveqLayer& layer) {
  std::size_t slice = 0;
  for (const Slicing& candidate : layer.candidates) slice = std::max(slice, candidate.slice());
  return kHeadBytes + slice * slice * sizeof(float);
}

NewBasis read_basis(ByteReader& reader, const GradiveqSettings& settings,
                    const GradiveqLayer& layer, int keeper, const Exchange& exchange) {
  const auto require = [&](bool holds, const std::string& expected) {
    if (holds) return;
    throw Error(
        ErrorCode::bad_frame,
        fmt::format("gradiveq: bucket {}, step {}: rank {} sent an invalid basis for "
                    "tensor '{}': {}",
                    exchange.id().bucket, exchange.id().step, keeper, layer.name, expected));
  };
  const auto head = reader.take(kHeadBytes);
  const std::size_t candidate = load_value<std::uint32_t>(head, 0);
  const std::size_t size = load_value<std::uint32_t>(head, 4);
  const auto mean_weight = load_value<float>(head, 8);
  const auto zero = load_value<std::uint32_t>(head, 12);
  require(zero == 0, fmt::format("a reserved field must be 0 and is {}", zero));
  require(candidate < layer.candidates.size() && (!layer.decided || candidate == layer.chosen),
          fmt::format("it is for order {} of {}, order {} is in use", candidate,
                      layer.candidates.size(), layer.chosen));
  const Slicing& slicing = layer.candidates[candidate];
  const std::size_t slice = slicing.slice();
  require(size <= slice, fmt::format("it has {} columns for slices of {} floats", size, slice));
  require(mean_weight >= 0 && mean_weight <= 1,
          fmt::format("the weight of the mean must be between 0 and 1 and is {}", mean_weight));
  const auto bytes = reader.take(slice * size * sizeof(float));
  const std::uint64_t received = checksum(bytes);
  const auto expected = load_value<std::uint64_t>(head, 16);
  require(received == expected,
          fmt::format("the checksum is {:016x} instead of {:016x}", received, expected));
  std::vector<float> columns(slice * size);
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(columns)).begin());
  const std::string wrong = wrong_column(columns, size);
  require(wrong.empty(), wrong);
  NewBasis basis{.layer = layer.number,
                 .candidate = candidate,
                 .mean_weight = mean_weight,
                 .basis = Basis(columns, slice, size),
                 .owed = layer.no_errors(slicing, size)};
  if (layer.is_keeper) basis.evidence.push_back(next_evidence(settings, layer, candidate));
  return basis;
}

}  // namespace

std::vector<NewBasis> exchange_bases(const GradiveqState& state,
                                     const std::vector<std::size_t>& due, Exchange& exchange) {
  exchange.statistics["renewed"] = static_cast<double>(due.size());
  std::vector<NewBasis> bases(due.size());
  std::vector<std::byte> own;
  std::size_t limit = 0;
  exchange.timed(Stage::encode, [&] {
    for (const std::size_t l : due) {
      const GradiveqLayer& layer = state.layers[l];
      limit += basis_limit(layer);
      if (layer.is_keeper) append_basis(state.settings, layer, own);
    }
  });
  if (due.empty()) return bases;
  // All keepers compute eigenvectors at the same time, and each sends all of its bases at once.
  gather(exchange, own, limit, [&](int rank, std::span<const std::byte> payload) {
    const std::string what = fmt::format("gradiveq: the message with the bases of rank {}", rank);
    ByteReader reader(payload, what);
    for (std::size_t i = 0; i < due.size(); ++i) {
      if (Archive::keeper_of(due[i], exchange.size()) != rank) continue;
      bases[i] = read_basis(reader, state.settings, state.layers[due[i]], rank, exchange);
    }
    reader.finish();
  });
  return bases;
}

void adopt(NewBasis&& basis, std::uint64_t step, GradiveqLayer& layer) noexcept {
  if (layer.is_keeper) {
    layer.evidence = std::move(basis.evidence);
    layer.agreement /= 2;
    layer.strength /= 2;
  }
  layer.chosen = basis.candidate;
  layer.decided = true;
  layer.mean_weight = basis.mean_weight;
  layer.fresh = true;
  layer.renewed_at = step;
  layer.basis = std::move(basis.basis);
  layer.owed = std::move(basis.owed);
}

}  // namespace thinreduce

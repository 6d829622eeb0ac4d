#include "thinreduce/methods/ndqsg/side_information.h"

#include <algorithm>
#include <array>
#include <bit>

#include "thinreduce/method/archive.h"
#include "thinreduce/methods/ndqsg/code.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {
namespace {

// With fewer samples nothing is decided.
constexpr std::uint64_t kMinSamples = 64;
// At this many samples, the counts are halved, so that older samples count less.
constexpr std::uint64_t kManySamples = 4096;
// Steps without nesting after a failed attempt. Gradients change slowly, so each failed attempt
// doubles the next pause, up to a limit.
constexpr std::uint64_t kFirstPause = 16;
constexpr std::uint64_t kLongestPause = 1024;
// Weight of the newest step in the running mean of distances.
constexpr double kNewWeight = 0.25;

}  // namespace

SideInformation::SideInformation(const SideInformationOptions& options)
    : options_(options), next_pause_(kFirstPause) {}

double SideInformation::alpha() const {
  if (!options_.learns_alpha) return options_.alpha;
  return distance_ < 0 ? 1 : NestedCode::best_alpha(distance_);
}

void SideInformation::learn(const Trial& trial) {
  if (plain_steps_ > 0) {
    --plain_steps_;
    return;
  }
  if (trial.samples == 0) return;
  samples_ += trial.samples;
  failures_ += trial.failures;
  const double distance = trial.square_distance / static_cast<double>(trial.samples);
  distance_ = distance_ < 0 ? distance : distance_ + kNewWeight * (distance - distance_);
  if (samples_ < kMinSamples) return;
  if (static_cast<double>(failures_) > options_.max_failures * static_cast<double>(samples_)) {
    plain_steps_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kLongestPause);
    samples_ = 0;
    failures_ = 0;
    return;
  }
  if (samples_ >= kManySamples) {
    samples_ /= 2;
    failures_ /= 2;
    next_pause_ = kFirstPause;
  }
}

void SideInformation::state(Archive& archive) {
  auto distance = std::bit_cast<std::uint64_t>(distance_);
  archive.number("samples", samples_);
  archive.number("failures", failures_);
  archive.number("distance", distance);
  archive.number("plain_steps", plain_steps_);
  archive.number("next_pause", next_pause_);
  distance_ = std::bit_cast<double>(distance);
}

std::uint64_t SideInformation::fingerprint() const {
  std::uint64_t hash = 0;
  for (const std::uint64_t part : std::array{samples_, failures_, plain_steps_, next_pause_,
                                             std::bit_cast<std::uint64_t>(distance_)}) {
    hash = mix(hash ^ part);
  }
  return hash;
}

}  // namespace thinreduce

#include "thinreduce/methods/ndqsg/side_information.h"

#include <algorithm>

#include "thinreduce/method/archive.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {

void SideInformation::learn(double saved) {
  if (saved >= kWorthwhile) {
    next_pause_ = kFirstPause;
    return;
  }
  plain_steps_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
}

void SideInformation::state(Archive& archive) {
  archive.count("plain_steps", plain_steps_, kLongestPause);
  archive.count("next_pause", next_pause_, kLongestPause);
}

std::uint64_t SideInformation::fingerprint() const {
  return mix({plain_steps_, next_pause_});
}

}  // namespace thinreduce

// The times at which a link or a core is in use, which are assigned in any order.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <map>

namespace thinreduce {

class BusyTimes {
 public:
  using Time = std::chrono::nanoseconds;

  // Returns when it has been free for `length` since `start`, and marks this time as busy.
  Time take(Time start, Time length) {
    if (length == Time::zero()) return start;
    auto next = spans_.upper_bound(start);
    Time begin = start;
    Time at = start;  // everything from `begin` to here is busy
    if (next != spans_.begin()) {
      const auto before = std::prev(next);
      if (before->second >= start) {
        begin = before->first;
        at = before->second;
        next = spans_.erase(before);
      }
    }
    for (; next != spans_.end() && next->first - at < length; next = spans_.erase(next)) {
      length -= next->first - at;
      at = next->second;
    }
    const Time end = at + length;
    if (next != spans_.end() && next->first == end) {
      spans_[begin] = next->second;
      spans_.erase(next);
    } else {
      spans_[begin] = end;
    }
    // No message is sent so far into the past.
    if (spans_.size() > kMaxSpans) spans_.erase(spans_.begin());
    return end;
  }

 private:
  static constexpr std::size_t kMaxSpans = 10'000;

  std::map<Time, Time> spans_;  // busy from key to value; apart from one another
};

}  // namespace thinreduce

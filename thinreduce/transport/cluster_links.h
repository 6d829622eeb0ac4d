// The links of a virtual cluster, by rank and between regions.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// The ranks from `first` to `last`, both included.
struct RankRange {
  int first = 0;
  int last = 0;
  [[nodiscard]] bool holds(int rank) const { return first <= rank && rank <= last; }
};

// The path between two regions, such as data centres. All messages between a rank of the one and a
// rank of the other share it, each direction on its own.
struct RegionPath {
  RankRange one;
  RankRange other;
  Link link;
};

struct ClusterLinks {
  Link common;
  std::map<int, Link> own;  // of the ranks that differ
  std::vector<RegionPath> paths;

  // Parses the link of most ranks and, after semicolons, exceptions:
  //   1gbit,5ms;3=100mbit,40ms            rank 3 has another link
  //   1gbit,5ms;0-1=10gbit                so have ranks 0 and 1
  //   10gbit,0.1ms;0-3|4-7=1gbit,30ms     ranks 0 to 3 and ranks 4 to 7 are two regions
  // Throws Error{bad_input} for any other text.
  static ClusterLinks parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] const Link& of(int rank) const;
  // Throws Error{bad_input} if a rank is named that is not in a world of `world` ranks.
  void check_ranks(int world) const;
};

}  // namespace thinreduce

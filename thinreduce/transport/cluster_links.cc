#include "thinreduce/transport/cluster_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

std::optional<int> parse_rank(std::string_view text) {
  int rank = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || rank < 0) return {};
  return rank;
}

std::optional<RankRange> parse_ranks(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = parse_rank(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_rank(text.substr(dash + 1));
  if (!first || !last || *last < *first) return {};
  return RankRange{*first, *last};
}

[[noreturn]] void refuse(std::string_view part) {
  throw Error(ErrorCode::bad_input,
              fmt::format("link '{}' must be RANKS=LINK or RANKS|RANKS=LINK, for example "
                          "3=100mbit,40ms or 0-3|4-7=1gbit,30ms; the first rank of a range must "
                          "not be above its last",
                          part));
}

void add_own(ClusterLinks& links, RankRange ranks, const Link& link) {
  for (int rank = ranks.first; rank <= ranks.last; ++rank) {
    if (!links.own.emplace(rank, link).second) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("rank {} was given two links; give it one", rank));
    }
  }
}

void add_path(ClusterLinks& links, const RegionPath& path) {
  const auto overlap = [](RankRange a, RankRange b) {
    return a.first <= b.last && b.first <= a.last;
  };
  if (overlap(path.one, path.other)) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("a path must join two regions without a common rank; got ranks {}-{} and "
                    "{}-{}",
                    path.one.first, path.one.last, path.other.first, path.other.last));
  }
  for (const RegionPath& before : links.paths) {
    if ((overlap(before.one, path.one) && overlap(before.other, path.other)) ||
        (overlap(before.one, path.other) && overlap(before.other, path.one))) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("two paths join ranks {}-{} and {}-{}; give one", path.one.first,
                              path.one.last, path.other.first, path.other.last));
    }
  }
  links.paths.push_back(path);
}

std::string show(RankRange ranks) {
  return ranks.first == ranks.last ? fmt::format("{}", ranks.first)
                                   : fmt::format("{}-{}", ranks.first, ranks.last);
}

// Ranks that no machine could run; guards against a typing error that would fill the memory.
constexpr int kMaxRank = 1 << 16;

}  // namespace

ClusterLinks ClusterLinks::parse(std::string_view text) {
  ClusterLinks links;
  if (text.substr(0, text.find(';')).find('=') != std::string_view::npos) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("links '{0}' must begin with the link of all other ranks: 1gbit;{0}", text));
  }
  links.common = Link::parse(text.substr(0, text.find(';')));
  while (text.find(';') != std::string_view::npos) {
    text.remove_prefix(text.find(';') + 1);
    const std::string_view part = text.substr(0, text.find(';'));
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) refuse(part);
    const std::string_view ranks = part.substr(0, equals);
    const auto bar = ranks.find('|');
    const auto one = parse_ranks(ranks.substr(0, bar));
    const auto other = bar == std::string_view::npos ? one : parse_ranks(ranks.substr(bar + 1));
    if (!one || !other || std::max(one->last, other->last) > kMaxRank) refuse(part);
    const Link link = Link::parse(part.substr(equals + 1));
    if (bar == std::string_view::npos) {
      add_own(links, *one, link);
    } else {
      add_path(links, {*one, *other, link});
    }
  }
  return links;
}

std::string ClusterLinks::to_string() const {
  std::string text = common.to_string();
  for (const auto& [rank, link] : own) text += fmt::format(";{}={}", rank, link.to_string());
  for (const RegionPath& path : paths) {
    text += fmt::format(";{}|{}={}", show(path.one), show(path.other), path.link.to_string());
  }
  return text;
}

const Link& ClusterLinks::of(int rank) const {
  const auto found = own.find(rank);
  return found == own.end() ? common : found->second;
}

void ClusterLinks::check_ranks(int world) const {
  const auto check = [&](int rank) {
    if (rank < world) return;
    throw Error(
        ErrorCode::bad_input,
        fmt::format("a link is given for rank {}, but the ranks are 0 to {}; leave it out, or "
                    "raise --ranks",
                    rank, world - 1));
  };
  for (const auto& [rank, link] : own) check(rank);
  for (const RegionPath& path : paths) check(std::max(path.one.last, path.other.last));
}

}  // namespace thinreduce

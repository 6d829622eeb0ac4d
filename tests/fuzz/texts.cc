// Short texts of users: links, links of a virtual cluster, outer steps. Each is refused, or its
// text stands for the same value.
#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "thinreduce/engine/outer_step.h"
#include "thinreduce/transport/cluster_links.h"
#include "thinreduce/transport/throttle.h"

namespace thinreduce::fuzz {
namespace {

template <typename Value>
void read(std::string_view text) {
  std::string again;
  if (!accepts([&] { again = Value::parse(text).to_string(); })) return;
  expect(Value::parse(again).to_string() == again, "the text stands for the value: " + again);
}

}  // namespace

void run(Input input) {
  const auto kind = input.value<std::uint8_t>() % 3;
  const std::string text(input.text());
  if (kind == 0) {
    accepts([&] {
      const Link link = Link::parse(text);
      expect(std::isfinite(link.bytes_per_second) && link.bytes_per_second >= 0 &&
                 std::isfinite(link.latency.count()) && link.latency.count() >= 0,
             "a link has a rate and a latency");
    });
    read<Link>(text);
  } else if (kind == 1) {
    read<ClusterLinks>(text);
    accepts([&] { ClusterLinks::parse(text).check_ranks(4); });
  } else {
    read<OuterStep>(text);
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto add = [&](char kind, std::string_view text) {
    Bytes seed{static_cast<std::byte>(kind)};
    put_text(seed, text);
    all.push_back(seed);
  };
  for (const char* link : {"100mbit,5ms", "1gbit", "2.5gbit,200us", "unlimited", "10kbit,1s"}) {
    add(0, link);
    add(1, link);
  }
  add(1, "1gbit,5ms;3=100mbit,40ms");
  add(1, "1gbit,5ms;0-1=10gbit");
  add(1, "1gbit;0-1048575=1mbit");
  add(1, "10gbit,0.1ms;0-3|4-7=1gbit,30ms");
  for (const char* outer : {"nesterov,lr=0.7,momentum=0.9", "sgd,lr=1", "sgd", "nesterov"}) {
    add(2, outer);
  }
  return all;
}

}  // namespace thinreduce::fuzz

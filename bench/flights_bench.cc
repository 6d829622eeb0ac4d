// Times the exchange of a step whose gradient comes in several buckets, in a virtual cluster: the
// gradient of a small GPT, cut into buckets of at most this many floats at the borders of its
// tensors, all submitted at once.
//
//   flights_bench [LINK [RANKS [FLOATS_PER_BUCKET [SPEC...]]]]
//
// Prints per spec the number of buckets, the virtual milliseconds of the slowest rank (median of
// the steps) and the latencies: the longest chain of messages in a step.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

constexpr int kSteps = 5;

// 4 layers, 128 wide, 96 characters, context 64; 0.83 M floats, in the order of backward.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> gpt_tensors() {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors{{"head", {96, 128}}};
  for (int layer = 4; layer-- > 0;) {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      tensors.emplace_back(fmt::format("layer{}.{}", layer, name), std::move(shape));
    };
    add("norms", {512});
    add("second.bias", {128});
    add("second", {128, 512});
    add("first.bias", {512});
    add("first", {512, 128});
    add("out.bias", {128});
    add("out", {128, 128});
    add("in.bias", {384});
    add("in", {384, 128});
  }
  tensors.emplace_back("places", std::vector<std::int64_t>{64, 128});
  tensors.emplace_back("characters", std::vector<std::int64_t>{96, 128});
  return tensors;
}

std::vector<BucketLayout> cut_gradient(std::size_t most) {
  std::vector<BucketLayout> buckets;
  for (const auto& [name, shape] : gpt_tensors()) {
    std::size_t elements = 1;
    for (const std::int64_t side : shape) elements *= static_cast<std::size_t>(side);
    if (buckets.empty() || buckets.back().elements + elements > most) {
      const auto id = static_cast<std::uint32_t>(buckets.size());
      buckets.push_back({.id = id, .elements = 0, .tensors = {}});
    }
    buckets.back().add(name, shape);
  }
  return buckets;
}

struct Figures {
  std::vector<double> seconds = std::vector<double>(kSteps);  // per step, of the slowest rank
  std::uint64_t latencies = 0;
};

Figures run_rank(SimulatedTransport& transport, Session& session,
                 const std::vector<BucketLayout>& layouts, std::uint64_t uncompressed) {
  Figures figures;
  std::vector<BucketHandle> handles;
  std::vector<std::vector<float>> values;
  for (const BucketLayout& layout : layouts) {
    handles.push_back(session.add_bucket(layout));
    values.emplace_back(layout.elements);
  }
  std::mt19937 random(static_cast<unsigned>(transport.rank()));
  std::normal_distribution<float> normal;
  const int warmup = static_cast<int>(uncompressed) + 1;
  for (int step = 0; step < warmup + kSteps; ++step) {
    for (auto& bucket : values) {
      std::ranges::generate(bucket, [&] { return 1e-3F * normal(random); });
    }
    transport.align();
    transport.begin_chain();
    const auto start = transport.now();
    std::vector<std::future<Report>> done;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      done.push_back(session.submit(handles[i], values[i]));
    }
    for (auto& one : done) one.get();
    if (step < warmup) continue;
    figures.seconds[static_cast<std::size_t>(step - warmup)] =
        Seconds(transport.now() - start).count();
    figures.latencies = std::max(figures.latencies, transport.longest_chain());
  }
  return figures;
}

Figures measure(const std::string& text, const std::string& link, int world,
                const std::vector<BucketLayout>& layouts) {
  std::vector<std::shared_ptr<SimulatedTransport>> ranks;
  for (auto& rank : simulate(connect_threads(world), {.links = ClusterLinks::parse(link)})) {
    ranks.push_back(std::move(rank));
  }
  const Spec spec = Spec::parse(text);
  std::vector<Figures> all(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank, transport = std::exchange(ranks[rank], nullptr)] {
      Session session(transport, {.spec = text, .momentum_inside_ok = true});
      all[rank] = run_rank(*transport, session, layouts, spec.info->cycle(spec.options).start);
      transport->align();
    });
  }
  for (auto& thread : threads) thread.join();
  Figures slowest;
  for (const Figures& one : all) {
    slowest.latencies = std::max(slowest.latencies, one.latencies);
    for (std::size_t i = 0; i < kSteps; ++i) {
      slowest.seconds[i] = std::max(slowest.seconds[i], one.seconds[i]);
    }
  }
  std::ranges::sort(slowest.seconds);
  return slowest;
}

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string link = words.empty() ? "100mbit,15ms" : words[0];
  const int ranks = words.size() > 1 ? std::stoi(words[1]) : 4;
  const std::size_t most = words.size() > 2 ? std::stoul(words[2]) : 100'000;
  std::vector<std::string> specs{"fp32", "bf16",     "powersgd", "dqsg", "ndqsg",
                                 "fft",  "gradiveq", "qsgd",     "topk", "sketch"};
  if (words.size() > 3) specs.assign(words.begin() + 3, words.end());
  const auto layouts = thinreduce::cut_gradient(most);
  fmt::print("{} ranks, link {}, {} buckets\n", ranks, link, layouts.size());
  for (const std::string& spec : specs) {
    const auto figures = thinreduce::measure(spec, link, ranks, layouts);
    fmt::print("{:12} {:6.1f} ms  {:3} latencies\n", spec, 1e3 * figures.seconds[2],
               figures.latencies);
  }
  return 0;
}

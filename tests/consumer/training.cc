#include <thinreduce/thinreduce.h>

#include <cstdio>
#include <thread>
#include <vector>

namespace {

// The buckets of a small model, in the order in which backward fills them.
std::vector<thinreduce::BucketLayout> layouts() {
  std::vector<thinreduce::BucketLayout> buckets(2);
  buckets[0].id = 0;
  buckets[0].add("fc.weight", {100, 400});
  buckets[0].add("fc.bias", {100});  // 1-D: reduced uncompressed
  buckets[1].id = 1;
  buckets[1].add("conv.weight", {64, 16, 5, 5});
  buckets[1].spec = "powersgd:basis=2";  // the others use the session's spec
  return buckets;
}

std::vector<std::byte> train(std::unique_ptr<thinreduce::Transport> transport) {
  // Before the session, which writes to them until its destructor has returned.
  std::vector<std::vector<float>> gradients;
  thinreduce::Session session(std::move(transport), {.spec = "dqsg", .warmup_steps = 1});
  std::vector<thinreduce::BucketHandle> buckets;
  for (const auto& layout : layouts()) {
    buckets.push_back(session.add_bucket(layout));
    gradients.emplace_back(layout.elements);
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<std::future<thinreduce::Report>> done;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      gradients[i].assign(gradients[i].size(), static_cast<float>(session.rank() + step));
      done.push_back(session.submit(buckets[i], gradients[i]));  // backward goes on meanwhile
    }
    for (auto& one : done) one.get();  // throws thinreduce::Error; gradients now hold the means
    const thinreduce::Report report = session.finish_step();
    if (session.rank() == 0) {
      std::printf("step %d: %zu bytes sent, %.3f ms\n", step, std::size_t{report.bytes_sent},
                  1e3 * report.total);
    }
  }
  return session.save_bytes();  // or save(file)
}

}  // namespace

int main() {
  auto ranks = thinreduce::connect_threads(2);
  std::vector<std::vector<std::byte>> states(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] { states[rank] = train(std::move(ranks[rank])); });
  }
  for (auto& thread : threads) thread.join();
  const auto three = thinreduce::redistribute(states, 3);  // for Session::load_bytes on 3 ranks
  std::printf("thinreduce %s, %s: %zu states\n", thinreduce::version().data(),
              thinreduce::simd_target().c_str(), three.size());
}

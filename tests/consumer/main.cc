#include <thinreduce/thinreduce.h>

#include <cstdio>
#include <thread>
#include <vector>

int main() {
  auto ranks = thinreduce::connect_threads(4);  // or connect_gloo(...), connect_mpi()
  std::vector<std::thread> threads;
  for (auto& transport : ranks) {
    threads.emplace_back([&transport] {
      thinreduce::Session session(std::move(transport), {.spec = "topk:density=0.01"});
      std::vector<float> gradient(1'000'000, static_cast<float>(session.rank()));
      const thinreduce::Report report = session.reduce(/*bucket=*/0, gradient);
      if (session.rank() == 0) {
        std::printf("%llu bytes instead of %zu\n",
                    static_cast<unsigned long long>(report.payload_bytes), gradient.size() * 4);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// A world of ranks for the tests of methods: each rank has its transport and its method, and a step
// runs them on threads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "thinreduce/methods/archive.h"
#include "thinreduce/methods/registry.h"
#include "thinreduce/transport/threads.h"

namespace thinreduce {

// One vector a rank.
using PerRank = std::vector<std::vector<float>>;

class TestWorld {
 public:
  TestWorld(int world, std::string_view spec_text, std::size_t elements)
      : TestWorld(world, spec_text, BucketLayout{.id = 0, .elements = elements, .tensors = {}}) {}

  TestWorld(int world, std::string_view spec_text, BucketLayout layout)
      : spec_(Spec::parse(spec_text)),
        layout_(std::move(layout)),
        transports_(connect_threads(world)),
        thrown(transports_.size()) {
    for (int rank = 0; rank < world; ++rank) {
      MethodSetup setup;
      setup.layout = layout_;
      setup.rank = rank;
      setup.world = world;
      methods_.push_back(spec_.make(setup));
    }
  }

  // The bucket's values after one reduce; `thrown` says where it failed.
  PerRank step(PerRank values) {
    std::vector<std::jthread> ranks;
    statistics.assign(values.size(), {});
    payload_bytes.assign(values.size(), 0);
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        FrameId id;
        id.method = spec_.info->wire_id;
        id.step = step_;
        id.elements = layout_.elements;
        Exchange exchange(*transports_[rank], Seconds(20), id);
        thrown[rank] = nullptr;
        try {
          const auto moment = second_moments.empty() ? std::span<const float>()
                                                     : std::span<const float>(second_moments[rank]);
          methods_[rank]->reduce(Bucket{layout_, values[rank], moment}, exchange);
        } catch (const std::exception& error) {
          thrown[rank] = std::current_exception();
          exchange.transport().abandon(error.what());
        }
        statistics[rank] = exchange.statistics;
        payload_bytes[rank] = exchange.payload_bytes;
      });
    }
    ranks.clear();
    ++step_;
    return values;
  }

  // A step that must succeed with the same bits on all ranks: the mean.
  std::vector<float> mean(const PerRank& gradients) {
    const auto after = step(gradients);
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      EXPECT_EQ(thrown[rank], nullptr) << "rank " << rank;
      const bool same = after[rank].empty() || std::memcmp(after[rank].data(), after[0].data(),
                                                           after[0].size() * sizeof(float)) == 0;
      EXPECT_TRUE(same) << "rank " << rank << " has other bits";
    }
    return after[0];
  }

  [[nodiscard]] Method& method(std::size_t rank) { return *methods_[rank]; }
  [[nodiscard]] Transport& transport(std::size_t rank) { return *transports_[rank]; }

  // What a method shows to an archive as its residual, or under another name.
  [[nodiscard]] std::vector<float> residual(std::size_t rank,
                                            std::string_view wanted = "residual") {
    struct Reader final : Archive {
      std::string_view wanted;
      std::vector<float> found;
      void per_element(std::string_view name, std::vector<float>& values) override {
        if (name == wanted) found = values;
      }
      void floats(std::string_view, std::vector<float>&) override {}
      void number(std::string_view, std::uint64_t&) override {}
    } reader;
    reader.wanted = wanted;
    methods_[rank]->state(reader);
    return reader.found;
  }

 private:
  Spec spec_;
  BucketLayout layout_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Method>> methods_;
  std::uint64_t step_ = 0;

 public:
  PerRank second_moments;  // handed in with the values, unless empty
  std::vector<std::exception_ptr> thrown;
  std::vector<std::map<std::string, double>> statistics;
  std::vector<std::uint64_t> payload_bytes;
};

inline PerRank normal_gradients(int world, std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  PerRank gradients(static_cast<std::size_t>(world), std::vector<float>(elements));
  for (auto& gradient : gradients) {
    for (auto& value : gradient) value = normal(random);
  }
  return gradients;
}

// Small whole numbers: their sums are exact in any order.
inline PerRank whole_gradients(int world, std::size_t elements, unsigned seed) {
  auto gradients = normal_gradients(world, elements, seed);
  for (auto& gradient : gradients) {
    for (auto& value : gradient) value = static_cast<float>(static_cast<int>(value * 50));
  }
  return gradients;
}

inline std::vector<double> exact_sum(const PerRank& values) {
  std::vector<double> sum(values[0].size());
  for (const auto& one : values) {
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  return sum;
}

inline constexpr int kWorlds[] = {1, 2, 3, 4, 7};
// The last has three blocks of the top-k payload.
inline constexpr std::size_t kBucketSizes[] = {1, 2, 5, 63, 1000, 1009, 4099, 140001};

}  // namespace thinreduce

// A world of ranks for tests of methods. Each rank has a transport and a method; a step runs the
// ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/links.h"
#include "thinreduce/error.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// One vector per rank.
using PerRank = std::vector<std::vector<float>>;

// Keeps every field that a method shows, in order; shows them back when `shows_back`.
class MemoryArchive final : public Archive {
 public:
  using Archive::Archive;

  void summed(std::string_view name, std::vector<float>& values, Length /*length*/) override {
    has_summed = true;
    floats(name, values);
  }
  void replicated(std::string_view name, std::vector<float>& values, Length /*length*/) override {
    floats(name, values);
  }
  void number(std::string_view name, std::uint64_t& value) override {
    if (shows_back) {
      value = numbers.at(at_number++).second;
    } else {
      numbers.emplace_back(name, value);
    }
  }
  [[nodiscard]] bool loading() const override { return shows_back; }
  [[nodiscard]] const std::vector<float>& find(std::string_view name) const {
    for (const auto& [key, values] : vectors) {
      if (key == name) return values;
    }
    throw BrokenInvariant("the archive has such a field");
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return std::any_of(vectors.begin(), vectors.end(),
                       [&](const auto& vector) { return vector.first == name; });
  }
  [[nodiscard]] std::uint64_t find_number(std::string_view name) const {
    for (const auto& [key, value] : numbers) {
      if (key == name) return value;
    }
    throw BrokenInvariant("the archive has such a number");
  }

  bool shows_back = false;
  bool has_summed = false;  // the method owes something to the sum over the ranks
  std::size_t at_vector = 0, at_number = 0;
  std::vector<std::pair<std::string, std::vector<float>>> vectors;
  std::vector<std::pair<std::string, std::uint64_t>> numbers;

 private:
  void begin_section(std::size_t /*number*/) override {}
  void end_section(std::size_t /*number*/) override {}
  void floats(std::string_view name, std::vector<float>& values) {
    if (shows_back) {
      values = vectors.at(at_vector++).second;
    } else {
      vectors.emplace_back(name, values);
    }
  }
};

// Returns a bucket without tensors.
inline BucketLayout shapeless(std::size_t elements) {
  return {.id = 0, .elements = elements, .tensors = {}};
}

inline BucketLayout layout_of(const std::vector<std::vector<std::int64_t>>& shapes) {
  BucketLayout layout;
  for (const auto& shape : shapes) {
    layout.add("tensor" + std::to_string(layout.tensors.size()), shape);
  }
  return layout;
}

// Returns two convolutions, a bias, a matrix, and a matrix too small to gain from a factorisation.
inline BucketLayout mixed_layout() {
  return layout_of({{16, 8, 3, 3}, {16}, {40, 101}, {3, 5}, {24, 16, 5, 5}});
}

class TestWorld {
 public:
  using Make = std::function<std::unique_ptr<Method>(const MethodSetup&)>;

  TestWorld(int world, std::string_view spec_text, std::size_t elements)
      : TestWorld(world, spec_text, shapeless(elements)) {}

  TestWorld(int world, std::string_view spec_text, BucketLayout layout)
      : TestWorld(world, std::move(layout),
                  [spec = Spec::parse(spec_text)](const MethodSetup& setup) {
                    return spec.make(setup);
                  }) {
    wire_id_ = Spec::parse(spec_text).info->wire_id;
  }

  TestWorld(int world, BucketLayout layout, const Make& make)
      : layout_(std::move(layout)),
        transports_(connect_threads(world)),
        thrown(transports_.size()) {
    for (int rank = 0; rank < world; ++rank) {
      methods_.push_back(make({.layout = layout_, .rank = rank, .world = world}));
    }
  }

  // Returns the values after one reduce; `thrown` holds the exceptions of the ranks.
  PerRank step(PerRank values) {
    std::vector<std::jthread> ranks;
    statistics.assign(values.size(), {});
    payload_bytes.assign(values.size(), 0);
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const FrameId id{.method = wire_id_, .step = step_, .elements = layout_.elements};
        Exchange exchange(*transports_[rank], Seconds(20), id);
        exchange.link = link;
        thrown[rank] = nullptr;
        try {
          const auto moment = second_moments.empty() ? std::span<const float>()
                                                     : std::span<const float>(second_moments[rank]);
          methods_[rank]->reduce(Bucket{layout_, values[rank], moment}, exchange);
        } catch (const std::exception& error) {
          thrown[rank] = std::current_exception();
          exchange.transport().abandon(error.what());
        }
        statistics[rank] = exchange.statistics.figures();
        payload_bytes[rank] = exchange.payload_bytes;
      });
    }
    ranks.clear();
    ++step_;
    return values;
  }

  // Returns the mean of a step, which must succeed with the same bits and fingerprints on all
  // ranks.
  std::vector<float> mean(const PerRank& gradients) {
    const auto after = step(gradients);
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      EXPECT_EQ(thrown[rank], nullptr) << "rank " << rank;
      const bool same = after[rank].empty() || std::memcmp(after[rank].data(), after[0].data(),
                                                           after[0].size() * sizeof(float)) == 0;
      EXPECT_TRUE(same) << "rank " << rank << " has other bits";
      EXPECT_EQ(methods_[rank]->fingerprint(), methods_[0]->fingerprint()) << "rank " << rank;
    }
    return after[0];
  }

  [[nodiscard]] std::size_t elements() const { return layout_.elements; }
  [[nodiscard]] Method& method(std::size_t rank) { return *methods_[rank]; }
  [[nodiscard]] Transport& transport(std::size_t rank) { return *transports_[rank]; }

  [[nodiscard]] MemoryArchive saved(std::size_t rank) {
    MemoryArchive archive(static_cast<int>(rank), static_cast<int>(methods_.size()));
    methods_[rank]->state(archive);
    return archive;
  }
  void load(std::size_t rank, MemoryArchive archive) {
    archive.shows_back = true;
    methods_[rank]->state(archive);
    EXPECT_EQ(archive.at_vector, archive.vectors.size());
    EXPECT_EQ(archive.at_number, archive.numbers.size());
  }

  // Returns what a rank still owes to the sum, per element.
  [[nodiscard]] std::vector<float> kept(std::size_t rank) {
    std::vector<float> values(layout_.elements);
    methods_[rank]->add_residual(values);
    return values;
  }

  // Returns the residual, or another field of the state; empty when the method has none.
  [[nodiscard]] std::vector<float> residual(std::size_t rank,
                                            std::string_view wanted = "residual") {
    const MemoryArchive archive = saved(rank);
    if (archive.has("residual spectrum") && wanted == "residual") return kept(rank);
    return archive.has(wanted) ? archive.find(wanted) : std::vector<float>();
  }

 private:
  BucketLayout layout_;
  std::uint16_t wire_id_ = 0;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Method>> methods_;
  std::uint64_t step_ = 0;

 public:
  Link link = kOwnerLink;  // decides how sums travel
  PerRank second_moments;  // given to reduce(), unless empty
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

// Returns small whole numbers, whose sums are exact in any order.
inline PerRank whole_gradients(int world, std::size_t elements, unsigned seed) {
  auto gradients = normal_gradients(world, elements, seed);
  for (auto& gradient : gradients) {
    for (auto& value : gradient) value = static_cast<float>(static_cast<int>(value * 50));
  }
  return gradients;
}

// Returns sums of squares for gradients of about 1: some larger, some smaller than g^2.
inline PerRank random_moments(int world, std::size_t elements, unsigned seed) {
  auto moments = normal_gradients(world, elements, seed + 1000);
  for (auto& moment : moments) {
    for (auto& value : moment) value = value * value * 0.5F + 0.05F;
  }
  return moments;
}

inline std::vector<double> exact_sum(const PerRank& values) {
  std::vector<double> sum(values[0].size());
  for (const auto& one : values) {
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  return sum;
}

inline constexpr int kWorlds[] = {1, 2, 3, 4, 7};
// The last size has three blocks of the top-k payload.
inline constexpr std::size_t kBucketSizes[] = {1, 2, 5, 63, 1000, 1009, 4099, 140001};

}  // namespace thinreduce

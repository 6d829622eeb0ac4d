// A world of GradiVeQ ranks on threads, with shapes, and archives in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/test_world.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/archive.h"
#include "thinreduce/methods/gradiveq.h"
#include "thinreduce/transport/threads.h"

namespace thinreduce {

// Everything a method shows, in order; shows it back when `loading`.
class MemoryArchive final : public Archive {
 public:
  void per_element(std::string_view name, std::vector<float>& values) override {
    floats(name, values);
  }
  void floats(std::string_view name, std::vector<float>& values) override {
    if (loading) {
      values = vectors.at(at_vector++).second;
    } else {
      vectors.emplace_back(name, values);
    }
  }
  void number(std::string_view name, std::uint64_t& value) override {
    if (loading) {
      value = numbers.at(at_number++).second;
    } else {
      numbers.emplace_back(name, value);
    }
  }
  [[nodiscard]] const std::vector<float>& find(std::string_view name) const {
    for (const auto& [key, values] : vectors) {
      if (key == name) return values;
    }
    throw BrokenInvariant("the archive has such a field");
  }
  [[nodiscard]] std::uint64_t find_number(std::string_view name) const {
    for (const auto& [key, value] : numbers) {
      if (key == name) return value;
    }
    throw BrokenInvariant("the archive has such a number");
  }

  bool loading = false;
  std::size_t at_vector = 0, at_number = 0;
  std::vector<std::pair<std::string, std::vector<float>>> vectors;
  std::vector<std::pair<std::string, std::uint64_t>> numbers;
};

inline BucketLayout layout_of(const std::vector<std::vector<std::int64_t>>& shapes) {
  BucketLayout layout;
  for (const auto& shape : shapes) {
    Tensor tensor;
    tensor.name = "tensor" + std::to_string(layout.tensors.size());
    tensor.shape = shape;
    tensor.offset = layout.elements;
    layout.elements += tensor.elements();
    layout.tensors.push_back(std::move(tensor));
  }
  return layout;
}

class GradiveqWorld {
 public:
  GradiveqWorld(int world, const GradiveqSettings& settings, BucketLayout layout)
      : layout_(std::move(layout)), transports_(connect_threads(world)) {
    for (int rank = 0; rank < world; ++rank) {
      methods.push_back(
          make_gradiveq(settings, {.layout = layout_, .rank = rank, .world = world, .seed = 5}));
    }
  }

  PerRank step(PerRank values) {
    thrown.assign(values.size(), nullptr);
    statistics.assign(values.size(), {});
    payload_bytes.assign(values.size(), 0);
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        Exchange exchange(*transports_[rank], Seconds(20), FrameId{.step = step_});
        try {
          methods[rank]->reduce(Bucket{layout_, values[rank], {}}, exchange);
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

  // A step that must succeed with the same bits and fingerprints on all ranks.
  std::vector<float> mean(const PerRank& gradients) {
    const auto after = step(gradients);
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      EXPECT_EQ(thrown[rank], nullptr) << "rank " << rank;
      EXPECT_TRUE(after[rank].empty() || std::memcmp(after[rank].data(), after[0].data(),
                                                     after[0].size() * sizeof(float)) == 0)
          << "rank " << rank << " has other bits";
      EXPECT_EQ(methods[rank]->fingerprint(), methods[0]->fingerprint()) << rank;
    }
    return after[0];
  }

  [[nodiscard]] MemoryArchive saved(std::size_t rank) {
    MemoryArchive archive;
    methods[rank]->state(archive);
    return archive;
  }
  void load(std::size_t rank, MemoryArchive archive) {
    archive.loading = true;
    methods[rank]->state(archive);
    EXPECT_EQ(archive.at_vector, archive.vectors.size());
    EXPECT_EQ(archive.at_number, archive.numbers.size());
  }
  [[nodiscard]] Transport& transport(std::size_t rank) { return *transports_[rank]; }

  std::vector<std::unique_ptr<Method>> methods;
  std::vector<std::exception_ptr> thrown;
  std::vector<std::map<std::string, double>> statistics;
  std::vector<std::uint64_t> payload_bytes;

 private:
  BucketLayout layout_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::uint64_t step_ = 0;
};

}  // namespace thinreduce

// A world of GradiVeQ ranks on threads, with shapes, and archives in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

inline GradiveqSettings quick(std::uint64_t warmup, std::uint64_t interval) {
  GradiveqSettings settings;
  settings.schedule.warmup = warmup;
  settings.schedule.interval = interval;
  settings.schedule.collect = 3;
  return settings;
}

inline BucketLayout shapeless(std::size_t elements) {
  return {.id = 0, .elements = elements, .tensors = {}};
}

// Slices of `slice` floats in a space of `rank` dimensions, the same space for all seeds.
inline PerRank low_rank_gradients(int world, std::size_t slices, std::size_t slice,
                                  std::size_t rank, unsigned seed) {
  const auto directions = normal_gradients(static_cast<int>(rank), slice, 99);
  const auto amounts = normal_gradients(world, slices * rank, seed);
  PerRank gradients(static_cast<std::size_t>(world), std::vector<float>(slices * slice));
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (std::size_t s = 0; s < slices; ++s) {
      for (std::size_t j = 0; j < rank; ++j) {
        for (std::size_t k = 0; k < slice; ++k) {
          gradients[r][s * slice + k] += amounts[r][s * rank + j] * directions[j][k];
        }
      }
    }
  }
  return gradients;
}

inline double error_of(const std::vector<float>& mean, const PerRank& gradients) {
  const auto sum = exact_sum(gradients);
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double truth = sum[i] / static_cast<double>(gradients.size());
    error += std::pow(static_cast<double>(mean[i]) - truth, 2);
    energy += truth * truth;
  }
  return energy > 0 ? error / energy : error;
}

// What a rank holds back, of a bucket that is one run: the part of `kept` that was not sent, and
// the projections that are owed.
inline std::vector<float> residual_of(const MemoryArchive& archive, std::size_t slice) {
  std::vector<float> kept = archive.find("kept");
  const auto rank = archive.find_number("rank");
  if (archive.find_number("fresh") != 0 || rank == 0) return kept;
  const auto& basis = archive.find("basis");
  const std::vector<float> none;
  const auto& owed = archive.has("owed") ? archive.find("owed") : none;
  const std::size_t slices = kept.size() / slice;
  for (std::size_t s = 0; s + slice <= kept.size(); s += slice) {
    std::vector<double> projection(rank);
    for (std::size_t k = 0; k < slice; ++k) {
      for (std::size_t j = 0; j < rank; ++j) {
        projection[j] +=
            static_cast<double>(basis[k * rank + j]) * static_cast<double>(kept[s + k]);
      }
    }
    for (std::size_t k = 0; k < slice; ++k) {
      double sent = 0;
      for (std::size_t j = 0; j < rank; ++j) {
        const double owes = owed.empty() ? 0 : static_cast<double>(owed[j * slices + s / slice]);
        sent += static_cast<double>(basis[k * rank + j]) * (projection[j] - owes);
      }
      kept[s + k] -= static_cast<float>(sent);
    }
  }
  return kept;
}

}  // namespace thinreduce

// Bits that the dithered methods send for the gradients of three networks: the published figures,
// which count log2(symbols) per parameter, against the real payloads with scales, tables and frame
// headers. A Kbit is 1000 bits; figures are per step and rank, averaged over four ranks.
//
// Gradients are normal with a part common to all ranks, which the nested codes need. The bench
// fails if nested codes do not save as much as they should at the same error.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

constexpr int kRanks = 4;

using PerRank = std::vector<std::vector<float>>;

// Makes gradients of variance 1; `own` is the deviation of the part that differs between the ranks.
PerRank gradients(std::size_t elements, double own) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> common(elements);
  for (auto& value : common) value = normal(random);
  PerRank all(kRanks, std::vector<float>(elements));
  const auto shared = static_cast<float>(std::sqrt(1 - own * own));
  for (auto& gradient : all) {
    for (std::size_t i = 0; i < elements; ++i) {
      gradient[i] = shared * common[i] + static_cast<float>(own) * normal(random);
    }
  }
  return all;
}

struct Outcome {
  double kilobits = 0;  // per rank
  double error = 0;     // mean squared error of the mean
  double failures = 0;
};

Outcome reduce(const std::string& spec, const PerRank& input) {
  PerRank values = input;
  auto transports = connect_threads(kRanks);
  std::vector<Report> reports(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        Session session(std::move(transports[rank]), {.spec = spec, .min_elements = 0});
        reports[rank] = session.reduce(0, values[rank]);
      });
    }
  }
  Outcome outcome;
  for (const Report& report : reports) {
    outcome.kilobits += static_cast<double>(report.payload_bytes) * 8 / 1000 / kRanks;
  }
  if (reports[0].statistics.contains("decode_failures")) {
    outcome.failures = reports[0].statistics.at("decode_failures");
  }
  for (std::size_t i = 0; i < input[0].size(); ++i) {
    double mean = 0;
    for (const auto& gradient : input) mean += static_cast<double>(gradient[i]) / kRanks;
    outcome.error += std::pow(values[0][i] - mean, 2) / static_cast<double>(input[0].size());
  }
  return outcome;
}

struct Network {
  const char* name;
  std::size_t parameters;
  double published[4];  // fp32, 3 levels, 7 levels, nested
};

constexpr Network kNetworks[] = {
    {"FC-300-100", 266'610, {8531.5, 422.6, 748.5, 585.5}},
    {"LeNet", 1'663'370, {53227.8, 2636.4, 4669.7, 3653.0}},
    {"CifarNet", 1'068'298, {34185.5, 1693.2, 2999.1, 2346.2}},
};

void print_table() {
  fmt::print("{:<11} {:<15} {:>10} {:>13} {:>15} {:>10}\n", "network", "method", "published",
             "fixed length", "entropy coded", "error");
  for (const Network& network : kNetworks) {
    const PerRank input = gradients(network.parameters, 0.05);
    const auto row = [&](const char* label, int column, const std::string& spec) {
      const Outcome fixed = reduce(spec + ",entropy=off", input);
      const Outcome coded = reduce(spec + ",entropy=on", input);
      fmt::print("{:<11} {:<15} {:>10.1f} {:>13.1f} {:>15.1f} {:>10.5f}\n", network.name, label,
                 network.published[column], fixed.kilobits, coded.kilobits, coded.error);
    };
    const Outcome fp32 = reduce("fp32", input);
    fmt::print("{:<11} {:<15} {:>10.1f} {:>13.1f}\n", network.name, "fp32", network.published[0],
               fp32.kilobits);
    row("dqsg 3 symbols", 1, "dqsg:levels=3,collective=gather");
    row("dqsg 7 symbols", 2, "dqsg:levels=7,collective=gather");
    row("ndqsg (3,1)", 3, "ndqsg:levels=3,nested=1");
  }
}

// Compares codes with equal step sizes, hence equal error. Returns whether the nested code saves at
// least the fraction `least`.
bool compare(const PerRank& input, const std::string& plain_spec, const std::string& nested_spec,
             double least) {
  const Outcome plain = reduce(plain_spec, input);
  const Outcome nested = reduce(nested_spec, input);
  const double saved = 1 - nested.kilobits / plain.kilobits;
  const bool good = saved >= least && std::abs(nested.error / plain.error - 1) < 0.03;
  fmt::print(
      "{:<42} {:>9.1f} Kbit  error {:.6f}\n{:<42} {:>9.1f} Kbit  error {:.6f}  failures {}  "
      "saves {:.1f} %{}\n",
      plain_spec, plain.kilobits, plain.error, nested_spec, nested.kilobits, nested.error,
      nested.failures, 100 * saved, good ? "" : "  TOO LITTLE, OR ANOTHER ERROR");
  return good;
}

}  // namespace
}  // namespace thinreduce

int main() {
  using namespace thinreduce;
  fmt::print("Kbit per step and rank; published figures count log2(symbols) per parameter\n\n");
  print_table();
  fmt::print("\nNested against dithered codes with the same step size, CifarNet's size\n\n");
  const PerRank near = gradients(kNetworks[2].parameters, 0.05);
  const PerRank nearer = gradients(kNetworks[2].parameters, 0.02);
  bool good =
      compare(near, "dqsg:levels=7,collective=gather,entropy=off", "ndqsg:entropy=off", 0.2);
  // Entropy coding removes most of the redundancy of seven symbols, so nesting saves less.
  good &= compare(near, "dqsg:levels=7,collective=gather", "ndqsg:plain_fraction=0.25", 0.15);
  good &= compare(nearer, "dqsg:levels=31,collective=gather", "ndqsg:levels=15,nested=5", 0.2);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

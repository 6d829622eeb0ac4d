// Residuals stay bounded: however long a training runs, the norm of a rank's residual (powersgd: of
// the mean of all ranks' residuals) is at most a multiple of the largest gradient's, which the
// method's page states.
//
// Where each step delivers a part delta of the energy of gradient plus residual, the multiple is
// sqrt(1-delta) / (1 - sqrt(1-delta)), at most 2/delta.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/method_laws.h"
#include "tests/test_world.h"

namespace thinreduce::residuals_test {
namespace {

// More steps than the multiple: a residual of which nothing is ever sent must not pass.
unsigned steps_for(double multiple) {
  return std::max(200U, static_cast<unsigned>(3 * multiple));
}
constexpr int kWorld = 2;

double length(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

// Mostly small values; one in 500 is a thousand times larger, at new places in each step.
PerRank spiky_gradients(int world, std::size_t elements, unsigned seed) {
  auto gradients = normal_gradients(world, elements, seed);
  std::mt19937 random(seed);
  for (auto& gradient : gradients) {
    for (auto& value : gradient) value *= random() % 500 == 0 ? 10.0F : 0.01F;
  }
  return gradients;
}

using Gradients = std::function<PerRank(int world, std::size_t elements, unsigned step)>;
const std::map<std::string, Gradients> kGradients{
    {"noise", normal_gradients},
    {"constant", [](int world, std::size_t elements,
                    unsigned) { return normal_gradients(world, elements, 7); }},
    {"spiky", spiky_gradients},
};

// The multiple that docs/methods/METHOD.md states, or a smaller one.
struct Bounded {
  std::string spec;
  double multiple;
};

double multiple_of(const std::string& spec) {
  const std::string name = Spec::parse(spec).info->name;
  if (name != "gradiveq") {
    static const std::map<std::string, double> multiples{
        {"dqsg", 5}, {"ndqsg", 5},   {"qsgd", 1.5},   {"terngrad", 8},  {"topk", 20},
        {"fft", 14}, {"sketch", 17}, {"powersgd", 8}, {"variance", 10}, {"demo", 40}};
    return multiples.at(name);  // throws for a new method: it and its page need a bound
  }
  return spec.find('+') != std::string::npos ? 250 : 50;
}

std::vector<Bounded> bounded() {
  std::vector<Bounded> all;
  for (const Law& law : keeping_laws()) all.push_back({law.spec, multiple_of(law.spec)});
  if (all.empty()) return all;  // the CPU lacks the wanted target
  for (const Bounded& other :
       std::vector<Bounded>{{"dqsg:levels=3,feedback=on", 23},
                            {"dqsg:clip=2", 23},
                            {"dqsg:levels=3,feedback=on,clip=2", 23},
                            {"dqsg:levels=3,feedback=on,clip=2,collective=gather", 23},
                            {"dqsg:levels=3,feedback=on,clip=2,collective=root", 23},
                            {"dqsg:clip=2,collective=root", 23},
                            {"dqsg:feedback=on,collective=owner", 5},
                            {"qsgd:feedback=on,collective=owner", 8},
                            {"qsgd:bits=4,feedback=on", 8},
                            {"terngrad:feedback=on,collective=owner", 8},
                            {"qsgd:bits=2,feedback=on", 46},
                            {"qsgd:bits=3,feedback=on", 16},
                            {"terngrad:feedback=on,clip=0", 64},
                            {"ndqsg:levels=2,feedback=on", 8},
                            {"topk:density=0.01", 200},
                            {"topk:density=0.05", 40},
                            {"topk:density=0.05,chunk=64", 40},
                            {"topk:density=0.05,chunk=64,values=2bit", 40},
                            {"sketch:density=0.05,min_values=1", 40},
                            {"demo:beta=1", 40},
                            {"demo:beta=1,values=f32,density=0.1,chunk=64", 20},
                            {"powersgd:basis=2", 32},
                            {"powersgd:basis=4", 16}}) {
    all.push_back(other);
  }
  return all;
}

// Returns the length of the longest residual of a rank. powersgd subtracts the mean of all ranks
// from the matrix of each: the sum of its residuals is bounded, and their differences add up.
double longest_residual(TestWorld& ranks, bool summed) {
  double longest = 0;
  std::vector<float> sum(ranks.elements());
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    const auto kept = ranks.kept(rank);
    longest = std::max(longest, length(kept));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += kept[i];
  }
  return summed ? length(sum) / kWorld : longest;
}

class BoundedResidual : public testing::TestWithParam<Bounded> {};

TEST_P(BoundedResidual, HoldsForEveryGradient) {
  const Law law{GetParam().spec, {}};
  for (const auto& [name, gradients] : kGradients) {
    SCOPED_TRACE(name);
    TestWorld ranks(kWorld, law.spec, layout_of({{8, 8, 3, 3}, {16, 24}}));
    double longest = 0;
    double residual = 0;
    for (unsigned step = 0; step < steps_for(GetParam().multiple); ++step) {
      if (reads_second_moments(law.spec)) {
        ranks.second_moments = random_moments(kWorld, ranks.elements(), step);
      }
      const auto each = gradients(kWorld, ranks.elements(), step);
      for (const auto& gradient : each) longest = std::max(longest, length(gradient));
      (void)ranks.mean(each);
      residual = std::max(residual, longest_residual(ranks, law.spec.starts_with("powersgd")));
    }
    EXPECT_LE(residual, GetParam().multiple * longest);
  }
}

std::string case_name(const testing::TestParamInfo<Bounded>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param.spec);
}
INSTANTIATE_TEST_SUITE_P(Laws, BoundedResidual, testing::ValuesIn(bounded()), case_name);

}  // namespace
}  // namespace thinreduce::residuals_test

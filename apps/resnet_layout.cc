#include "apps/resnet_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::apps {
namespace {

constexpr double kParameters = 25'557'032;
constexpr std::size_t kFewestFloats = 4096;
constexpr std::size_t kFewestByDefault = 1'000'000;
constexpr int kBlocks[] = {3, 4, 6, 3};  // per stage

using Shape = std::vector<std::int64_t>;
using Shapes = std::vector<std::pair<std::string, Shape>>;

// Lists the tensors of a network, first layer first.
class Lister {
 public:
  explicit Lister(double scale) : scale_(scale) {}

  Shapes list() {
    convolution("conv1", width(64), 3, 7);
    std::int64_t in = width(64);
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t inner = width(64 << stage);
      const std::int64_t out = width(256 << stage);
      for (int block = 0; block < kBlocks[stage]; ++block) {
        const std::string name = fmt::format("layer{}.{}.", stage + 1, block);
        convolution(name + "conv1", inner, in, 1);
        convolution(name + "conv2", inner, inner, 3);
        convolution(name + "conv3", out, inner, 1);
        if (block == 0) convolution(name + "downsample", out, in, 1);
        in = out;
      }
    }
    return std::move(shapes_);
  }

  [[nodiscard]] std::int64_t width(int unscaled) const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(scale_ * unscaled + 1e-6));
  }

 private:
  // With the batch norm after it.
  void convolution(const std::string& name, std::int64_t out, std::int64_t in, std::int64_t side) {
    shapes_.emplace_back(name + ".weight", Shape{out, in, side, side});
    shapes_.emplace_back(name + ".norm.weight", Shape{out});
    shapes_.emplace_back(name + ".norm.bias", Shape{out});
  }

  double scale_;
  Shapes shapes_;
};

std::size_t elements(const Shapes& shapes) {
  BucketLayout layout;
  for (const auto& [name, shape] : shapes) layout.add(name, shape);
  return layout.elements;
}

}  // namespace

BucketLayout resnet_layout(std::size_t floats) {
  if (floats < kFewestFloats) {
    throw Error(ErrorCode::bad_input,
                fmt::format("--shapes resnet50 needs at least {} floats (got --floats {}); give "
                            "more floats or --shapes none",
                            kFewestFloats, floats));
  }
  double scale = std::sqrt(static_cast<double>(floats) / kParameters);
  Shapes shapes = Lister(scale).list();
  // Few floats: widths have a minimum of 1, and batch norm does not shrink as fast as the rest.
  while (elements(shapes) > floats) {
    scale *= 0.95;
    shapes = Lister(scale).list();
  }
  const std::size_t left = floats - elements(shapes);
  const auto features = static_cast<std::size_t>(Lister(scale).width(2048));
  BucketLayout layout;
  if (left % features > 0) layout.add("fc.bias", {static_cast<std::int64_t>(left % features)});
  if (left >= features) {
    layout.add("fc.weight",
               {static_cast<std::int64_t>(left / features), static_cast<std::int64_t>(features)});
  }
  for (auto shape = shapes.rbegin(); shape != shapes.rend(); ++shape) {
    layout.add(shape->first, shape->second);
  }
  return layout;
}

std::string default_shapes(std::size_t floats) {
  return floats < kFewestByDefault ? "none" : "resnet50";
}

BucketLayout bench_layout(const std::string& shapes, std::size_t floats) {
  if (shapes == "resnet50") return resnet_layout(floats);
  return {.id = 0, .elements = floats, .tensors = {}};
}

std::string describe_shapes(const std::string& shapes) {
  return shapes == "resnet50" ? "layers of ResNet-50" : "no shapes";
}

std::string notes_on_synthetic(const std::vector<std::string>& specs) {
  std::string names;
  for (const auto& text : specs) {
    const Spec spec = Spec::parse(text);
    if (spec.info->second_moment) names += (names.empty() ? "" : ", ") + spec.name();
  }
  if (names.empty()) return "";
  return fmt::format(
      "{}: the second moment is synthetic, and the bytes follow from it; a training's differ\n",
      names);
}

}  // namespace thinreduce::apps

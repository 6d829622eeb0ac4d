#include "apps/gradients.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "apps/files.h"
#include "apps/json_text.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

constexpr int kFormat = 1;
// Upper bounds that keep a damaged file from allocating without limit.
constexpr std::size_t kMaxElements = std::size_t{1} << 32U;
constexpr int kMaxRanks = 1024;

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::bad_state, fmt::format("{}: {}", what, why));
}

std::string record_name(std::uint64_t step, int rank, std::uint32_t bucket) {
  return fmt::format("step-{:06}-rank-{}-bucket-{}.f32", step, rank, bucket);
}

BucketLayout layout_from_json(const nlohmann::json& json, const std::string& what) {
  BucketLayout layout;
  layout.id = json.at("id").get<std::uint32_t>();
  for (const auto& item : json.at("tensors")) {
    Tensor tensor;
    tensor.name = item.at("name").get<std::string>();
    tensor.shape = item.at("shape").get<std::vector<std::int64_t>>();
    tensor.offset = layout.elements;
    std::size_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      if (extent < 0 || static_cast<std::size_t>(extent) > kMaxElements) {
        refuse(what, fmt::format("tensor {} has a dimension of {}, must be 0 to {}", tensor.name,
                                 extent, kMaxElements));
      }
      elements *= static_cast<std::size_t>(extent);
      if (elements > kMaxElements)
        refuse(what, fmt::format("tensor {} has more than {} elements", tensor.name, kMaxElements));
    }
    layout.elements += elements;
    layout.tensors.push_back(std::move(tensor));
  }
  if (json.at("elements") != layout.elements || layout.elements > kMaxElements) {
    refuse(what, fmt::format("bucket {} has {} elements, but its tensors have {}", layout.id,
                             json.at("elements").dump(), layout.elements));
  }
  return layout;
}

}  // namespace

Json layouts_to_json(const std::vector<BucketLayout>& layouts) {
  auto list = Json::array();
  for (const BucketLayout& layout : layouts) {
    auto tensors = Json::array();
    for (const Tensor& tensor : layout.tensors) {
      tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
    }
    list.push_back({{"id", layout.id}, {"elements", layout.elements}, {"tensors", tensors}});
  }
  return list;
}

std::vector<BucketLayout> layouts_from_json(const nlohmann::json& json, const std::string& what) {
  std::vector<BucketLayout> layouts;
  for (const auto& item : json) layouts.push_back(layout_from_json(item, what));
  return layouts;
}

GradientWriter::GradientWriter(RecordingOptions options, int rank)
    : options_(std::move(options)), rank_(rank) {}

void GradientWriter::write(std::uint64_t step, const BucketLayout& layout,
                           std::span<const float> values) const {
  write_file(options_.folder / record_name(step, rank_, layout.id), std::as_bytes(values));
}

void GradientWriter::add_step(std::uint64_t step) {
  if (rank_ != 0) return;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    for (const BucketLayout& layout : options_.layouts) {
      records_.push_back({{"file", record_name(step, rank, layout.id)},
                          {"step", step},
                          {"rank", rank},
                          {"bucket", layout.id}});
    }
  }
  const Json manifest{{"format", kFormat},
                      {"model", options_.model},
                      {"data", options_.data},
                      {"ranks", options_.ranks},
                      {"buckets", layouts_to_json(options_.layouts)},
                      {"records", records_}};
  write_text(options_.folder / "gradients.json", manifest.dump(1));
}

RecordedGradients::RecordedGradients(std::filesystem::path folder) : folder_(std::move(folder)) {
  const std::string file = (folder_ / "gradients.json").string();
  if (!std::filesystem::exists(file)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{} does not exist; give a folder that `thinreduce train "
                            "--save-gradients` wrote",
                            file));
  }
  const std::string text = read_text(file);
  try {
    const auto json = parse_json(text);
    if (json.at("format") != kFormat) {
      refuse(file, fmt::format("has format {}, but this version reads format {}",
                               json.at("format").dump(), kFormat));
    }
    ranks_ = json.at("ranks").get<int>();
    if (ranks_ < 1 || ranks_ > kMaxRanks) {
      refuse(file, fmt::format("has {} ranks, must be 1 to {}", ranks_, kMaxRanks));
    }
    layouts_ = layouts_from_json(json.at("buckets"), file);
    std::set<std::uint32_t> buckets;
    for (const auto& layout : layouts_) {
      if (!buckets.insert(layout.id).second)
        refuse(file, fmt::format("lists bucket {} twice", layout.id));
    }
    std::set<std::tuple<std::uint64_t, int, std::uint32_t>> records;
    std::set<std::uint64_t> steps;
    for (const auto& record : json.at("records")) {
      const auto step = record.at("step").get<std::uint64_t>();
      const auto rank = record.at("rank").get<int>();
      const auto bucket = record.at("bucket").get<std::uint32_t>();
      // File names are fixed, so a manifest can't point outside its folder.
      if (record.at("file") != record_name(step, rank, bucket)) {
        refuse(file,
               fmt::format("step {}, rank {}, bucket {} must be in {}, not {}", step, rank, bucket,
                           record_name(step, rank, bucket), record.at("file").dump()));
      }
      steps.insert(step);
      records.emplace(step, rank, bucket);
    }
    steps_.assign(steps.begin(), steps.end());
    for (const std::uint64_t step : steps_) {
      for (int rank = 0; rank < ranks_; ++rank) {
        for (const auto& layout : layouts_) {
          if (!records.contains({step, rank, layout.id})) {
            refuse(file, fmt::format("lacks the gradients of step {}, rank {}, bucket {}", step,
                                     rank, layout.id));
          }
        }
      }
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(file, fmt::format("is damaged ({}); record the gradients again with `thinreduce train "
                             "--save-gradients`",
                             plain_text(error)));
  }
  if (steps_.empty() || layouts_.empty()) {
    refuse(file, "lists no gradients; record some with `thinreduce train --save-gradients`");
  }
}

std::size_t RecordedGradients::elements() const {
  std::size_t sum = 0;
  for (const auto& layout : layouts_) sum += layout.elements;
  return sum;
}

void RecordedGradients::read(std::uint64_t step, int rank, const BucketLayout& layout,
                             std::span<float> values) const {
  const auto file = folder_ / record_name(step, rank, layout.id);
  const auto bytes = read_file(file);
  if (bytes.size() != values.size_bytes()) {
    refuse(file.string(), fmt::format("has {} bytes, but the {} floats of bucket {} take {}",
                                      bytes.size(), values.size(), layout.id, values.size_bytes()));
  }
  std::memcpy(values.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      refuse(file.string(), fmt::format("element {} is {}, must be finite", i, values[i]));
  }
}

}  // namespace thinreduce::apps

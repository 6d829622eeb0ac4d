// Tests of decoders, batches, schedules, run settings and recorded gradients.
#include <gtest/gtest.h>
#include <png.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>

#include "apps/files.h"
#include "apps/gradients.h"
#include "apps/train/batches.h"
#include "apps/train/dataset.h"
#include "apps/train/model_info.h"
#include "apps/train/options.h"
#include "apps/train/schedule.h"
#include "tests/ranks.h"

namespace thinreduce::train::data_test {
namespace {

namespace fs = std::filesystem;

Bytes idx(const std::vector<std::uint32_t>& extents, std::size_t values) {
  Bytes bytes{std::byte{0}, std::byte{0}, std::byte{8}, static_cast<std::byte>(extents.size())};
  for (const std::uint32_t extent : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::byte>(extent >> static_cast<unsigned>(shift)));
    }
  }
  for (std::size_t i = 0; i < values; ++i) bytes.push_back(static_cast<std::byte>(i % 10));
  return bytes;
}

TEST(Idx, DecodesImagesAndLabels) {
  const Images images = decode_idx(idx({3, 2, 2}, 12), idx({3}, 3), "t");
  EXPECT_EQ(images.count, 3U);
  EXPECT_EQ(images.side, 2U);
  EXPECT_EQ(images.pixels[5], 5);
  EXPECT_EQ(images.labels[2], 2);
}

TEST(Idx, RefusesWhatDoesNotFit) {
  const Bytes labels = idx({3}, 3);
  const Bytes whole = idx({3, 2, 2}, 12);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    thrown_text(ErrorCode::bad_input, [&] { (void)decode_idx(cut, labels, "t"); });
  }
  const auto refused = [&](const Bytes& images, const Bytes& other) {
    return thrown_text(ErrorCode::bad_input, [&] { (void)decode_idx(images, other, "t"); });
  };
  EXPECT_NE(refused(idx({4, 2, 2}, 16), labels).find("4 images, but 3 labels"), std::string::npos);
  EXPECT_NE(refused(idx({3, 2, 3}, 18), labels).find("square"), std::string::npos);
  refused(idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, 12), labels);
  refused(idx({0x10000, 0x10000, 0}, 0), labels);
  Bytes eleven = labels;
  eleven.back() = std::byte{11};
  EXPECT_NE(refused(whole, eleven).find("label 2 is 11"), std::string::npos);
}

// Pixel p of image n has the colour (n, p, p/4), each modulo 256.
Bytes make_png(std::size_t rows, std::size_t width) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t p = 0; p < width; ++p) {
      for (const std::size_t value : {n, p, p / 4})
        pixels.push_back(static_cast<std::uint8_t>(value));
    }
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(rows);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr);
  Bytes bytes(size);
  png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

TEST(Png, ARowIsAnImage) {
  Images images;
  append_png(make_png(2, 1024), "a", images);
  append_png(make_png(3, 1024), "b", images);
  ASSERT_EQ(images.count, 5U);
  ASSERT_EQ(images.pixels.size(), 5U * 3 * 1024);
  // Image 2 of the second file, pixel 1000, in the planes of red, green and blue.
  const std::uint8_t* image = images.pixels.data() + std::ptrdiff_t{4} * 3072;
  EXPECT_EQ(image[1000], 2);
  EXPECT_EQ(image[1024 + 1000], 1000 % 256);
  EXPECT_EQ(image[2048 + 1000], 250);
}

TEST(Png, RefusesCutAndForeignFiles) {
  const Bytes whole = make_png(4, 1024);
  for (std::size_t size = 0; size < whole.size() - 12;
       size += 7) {  // the last 12 bytes hold no data
    Images images;
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    thrown_text(ErrorCode::bad_input, [&] { append_png(cut, "x.png", images); });
  }
  Images images;
  const auto text =
      thrown_text(ErrorCode::bad_input, [&] { append_png(make_png(4, 512), "x.png", images); });
  EXPECT_NE(text.find("512"), std::string::npos) << text;
}

TEST(Labels, AreTenClasses) {
  const auto decode = [](std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return decode_labels(Bytes(bytes.begin(), bytes.end()), "l");
  };
  EXPECT_EQ(decode("[3,0,9]"), (std::vector<std::uint8_t>{3, 0, 9}));
  for (const char* bad : {"[3,0", "{}", "[10]", "[-1]", "[\"a\"]", ""}) {
    thrown_text(ErrorCode::bad_input, [&] { (void)decode(bad); });
  }
  // The text of such a value would overflow the stack.
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  thrown_text(ErrorCode::bad_input, [&] { (void)decode(deep); });
}

TEST(Mnist, IsTheRealOneAndACutFileIsNoticed) {
  const Dataset data = load_dataset("mnist", default_cache());
  EXPECT_EQ(data.train.count, 60000U);
  EXPECT_EQ(data.test.count, 10000U);
  EXPECT_EQ(data.train.labels[0], 5);
  EXPECT_EQ(data.test.labels[0], 7);
  const double mean = std::accumulate(data.train.pixels.begin(), data.train.pixels.end(), 0.0) /
                      static_cast<double>(data.train.pixels.size()) / 255;
  EXPECT_NEAR(mean, data.mean[0], 1e-4);

  const fs::path copy = fs::path(testing::TempDir()) / "cut-data";
  fs::remove_all(copy);
  fs::create_directories(copy);
  fs::copy(default_cache() / "mnist", copy / "mnist", fs::copy_options::recursive);
  const fs::path file = copy / "mnist" / "train-images-idx3-ubyte";
  const auto said = [&] {
    return thrown_text(ErrorCode::unavailable, [&] { (void)load_dataset("mnist", copy); });
  };
  {
    std::fstream altered(file, std::ios::in | std::ios::out | std::ios::binary);
    altered.seekp(1'000'000);
    altered.put('x');
  }
  EXPECT_NE(said().find(file.string() + " has checksum"), std::string::npos) << said();
  fs::resize_file(file, 47040016 / 2);
  EXPECT_NE(said().find(file.string() + " has 23520008 bytes, expected 47040016"),
            std::string::npos)
      << said();
  fs::remove_all(copy);
}

TEST(Cifar10, IsTheRealOne) {
  if (!fs::exists(default_cache() / "cifar10" / "test_lables.json")) {
    GTEST_SKIP() << "not fetched: thinreduce train --data cifar10 --model resnet20 --fetch-only";
  }
  const Dataset data = load_dataset("cifar10", default_cache());
  EXPECT_EQ(data.train.count, 50000U);
  EXPECT_EQ(data.test.count, 10000U);
  for (const Images* images : {&data.train, &data.test}) {
    for (int label = 0; label < 10; ++label) {
      EXPECT_EQ(std::count(images->labels.begin(), images->labels.end(), label),
                static_cast<std::ptrdiff_t>(images->count / 10));
    }
  }
  for (std::size_t channel = 0; channel < 3; ++channel) {
    double sum = 0;
    for (std::size_t image = 0; image < data.train.count; ++image) {
      const auto* plane = data.train.pixels.data() + (image * 3 + channel) * 1024;
      sum = std::accumulate(plane, plane + 1024, sum);
    }
    EXPECT_NEAR(sum / 50000 / 1024 / 255, data.mean[channel], 1e-3);
  }
}

// Returns 100 images of 4 x 4 pixels, each with the number of its image.
Dataset numbered() {
  Dataset data{.name = "numbered", .train = {}, .test = {}, .mean = {0}, .deviation = {1.0F / 255}};
  data.train = {.count = 100, .channels = 1, .side = 4, .pixels = {}, .labels = {}};
  for (std::size_t i = 0; i < 100; ++i) {
    for (int p = 0; p < 16; ++p) data.train.pixels.push_back(static_cast<std::uint8_t>(i));
    data.train.labels.push_back(static_cast<std::uint8_t>(i % 10));
  }
  data.test = data.train;
  return data;
}

TEST(Batches, RanksTogetherSeeWhatOneRankSees) {
  const Dataset data = numbered();
  for (const int ranks : {1, 2, 4}) {
    Batches joined(data, {.order = {.seed = 5, .batch = 12}});
    for (std::uint64_t step = 0; step < 20; ++step) {
      std::vector<std::uint32_t> together;
      for (int rank = 0; rank < ranks; ++rank) {
        Batches own(data, {.order = {.seed = 5,
                                     .batch = 12U / static_cast<unsigned>(ranks),
                                     .rank = rank,
                                     .ranks = ranks}});
        const auto indices = own.indices(step);
        together.insert(together.end(), indices.begin(), indices.end());
      }
      const auto expected = joined.indices(step);
      EXPECT_TRUE(std::equal(together.begin(), together.end(), expected.begin(), expected.end()));
    }
  }
}

TEST(Batches, AnEpochHasEveryImageAtMostOnceAndEpochsDiffer) {
  const Dataset data = numbered();
  Batches batches(data, {.order = {.seed = 1, .batch = 10}});
  ASSERT_EQ(batches.steps_per_epoch(), 10U);
  std::vector<std::vector<std::uint32_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::uint32_t> seen;
    for (std::uint64_t step = 0; step < 10; ++step) {
      const auto indices = batches.indices(epoch * 10 + step);
      seen.insert(seen.end(), indices.begin(), indices.end());
    }
    EXPECT_EQ(std::set<std::uint32_t>(seen.begin(), seen.end()).size(), 100U);
    epochs.push_back(seen);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  Batches other(data, {.order = {.seed = 2, .batch = 10}});
  EXPECT_FALSE(std::ranges::equal(other.indices(0), batches.indices(0)));
  const auto text = thrown_text(ErrorCode::bad_input,
                                [&] { Batches(data, {.order = {.batch = 60, .ranks = 2}}); });
  EXPECT_NE(text.find("100 samples"), std::string::npos) << text;
}

TEST(Batches, CropsAreOfTheImageOrTheBlackAroundIt) {
  const Dataset data = numbered();
  Batches batches(data,
                  {.order = {.seed = 3, .batch = 50}, .side = 4, .padding = 2, .augment = true});
  std::vector<float> images(std::size_t{50} * 16);
  std::vector<std::int64_t> labels(50);
  batches.training(1, images, labels);
  const auto indices = batches.indices(1);
  std::set<std::ptrdiff_t> black;
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(labels[i], indices[i] % 10);
    const auto* image = images.data() + i * 16;
    for (int p = 0; p < 16; ++p) {
      EXPECT_TRUE(std::abs(image[p]) < 1e-3 ||
                  std::abs(image[p] - static_cast<float>(indices[i])) < 1e-3)
          << image[p];
    }
    if (indices[i] != 0) {
      black.insert(std::count_if(image, image + 16, [](float v) { return std::abs(v) < 1e-3; }));
    }
  }
  EXPECT_GT(black.size(), 3U);  // the crops differ
  // Without augmentation the centre crop is the image itself.
  Batches middle(data, {.order = {.seed = 3, .batch = 50}, .side = 4, .padding = 2});
  middle.training(1, images, labels);
  EXPECT_NEAR(images[0], static_cast<float>(indices[0]), 1e-3);
  EXPECT_NEAR(images[15], static_cast<float>(indices[0]), 1e-3);
}

TEST(Schedule, HasItsShape) {
  const auto at = [](const char* kind, std::uint64_t step) {
    return Schedule{.kind = kind, .peak = 1, .steps = 100}.at(step);
  };
  EXPECT_EQ(at("constant", 99), 1);
  EXPECT_EQ(at("step", 49), 1);
  EXPECT_DOUBLE_EQ(at("step", 50), 0.1);
  EXPECT_DOUBLE_EQ(at("step", 75), 0.01);
  EXPECT_EQ(at("cosine", 0), 1);
  EXPECT_NEAR(at("cosine", 50), 0.5, 1e-12);
  EXPECT_NEAR(at("cosine", 100), 0, 1e-12);
  EXPECT_NEAR(at("onecycle", 0), 0.04, 1e-12);
  EXPECT_NEAR(at("onecycle", 25), 1, 1e-12);
  EXPECT_LT(at("onecycle", 99), 0.01);
  EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { (void)at("triangle", 0); }).find("cosine"),
            std::string::npos);
}

TEST(Options, SurviveTheConfigFile) {
  TrainOptions options;
  options.method = "topk:density=0.02";
  options.model = "resnet20";
  options.data = "cifar10";
  settle(options, 4, 50000);
  TrainOptions again;
  from_json(nlohmann::json::parse(to_json(options).dump()), "config", again);
  EXPECT_EQ(to_json(again).dump(), to_json(options).dump());
  EXPECT_EQ(options.steps, 390U);
  EXPECT_EQ(options.threads, 1);
  const auto text = thrown_text(ErrorCode::bad_state, [&] { from_json({}, "config", again); });
  EXPECT_NE(text.find("config"), std::string::npos);
  for (const char* key : {"batch", "steps", "evaluate_every", "check_every", "threads"}) {
    auto json = nlohmann::json::parse(to_json(options).dump());
    json[key] = 0;
    const auto zero = thrown_text(ErrorCode::bad_state, [&] { from_json(json, "config", again); });
    EXPECT_NE(zero.find(key), std::string::npos) << zero;
  }
  // Zero is a value of its own.
  TrainOptions zeros;
  zeros.learning_rate = 0;
  zeros.weight_decay = 0;
  settle(zeros, 4, 50000);
  EXPECT_EQ(zeros.learning_rate, 0);
  EXPECT_EQ(zeros.weight_decay, 0);
  options.data = "mnist";
  thrown_text(ErrorCode::bad_input, [&] { settle(options, 4, 60000); });
  // Runs of versions before label smoothing.
  auto old = nlohmann::json::parse(to_json(zeros).dump());
  old.erase("label_smoothing");
  from_json(old, "config", again);
  EXPECT_EQ(again.label_smoothing, 0);
}

TEST(Options, DefaultsAreThoseOfTheModelAndItsOptimizer) {
  const auto settled = [](const std::string& model, const std::string& optimizer) {
    TrainOptions options;
    options.model = model;
    options.data = find_model(model).data;
    options.optimizer = optimizer;
    settle(options, 4, 10000);
    return options;
  };
  const auto gpt = settled("gpt", "");
  EXPECT_EQ(gpt.optimizer, "adamw");
  EXPECT_EQ(gpt.batch, 12U);
  EXPECT_EQ(gpt.momentum, 0);
  EXPECT_EQ(gpt.learning_rate, find_model("gpt").learning_rate);
  EXPECT_EQ(settled("gpt", "sgd").learning_rate, 0.1);
  EXPECT_EQ(settled("resnet9", "").optimizer, "sgd");
  EXPECT_EQ(settled("resnet9", "").label_smoothing, 0.1);
  EXPECT_EQ(settled("resnet9", "adamw").learning_rate, 1e-3);
  EXPECT_EQ(settled("lenet", "adam").learning_rate, 1e-3);
  EXPECT_EQ(settled("lenet", "").label_smoothing, 0);
  // Momentum twice is refused, also when the optimizer is the model's default.
  TrainOptions twice;
  twice.model = "gpt";
  twice.data = "text";
  twice.method = "sketch:momentum=0.9";
  const auto text = thrown_text(ErrorCode::bad_input, [&] { check(twice); });
  EXPECT_NE(text.find("so does adamw"), std::string::npos) << text;
}

TEST(RecordedGradients, ComeBackAndDamageIsNamed) {
  const fs::path folder = fs::path(testing::TempDir()) / "recorded";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const BucketLayout layout{
      .id = 1,
      .elements = 5,
      .tensors = {{.name = "a", .shape = {2, 2}}, {.name = "b", .shape = {1}, .offset = 4}}};
  for (int rank = 1; rank >= 0; --rank) {
    apps::GradientWriter writer(
        {.folder = folder, .model = "m", .data = "d", .ranks = 2, .layouts = {layout}}, rank);
    const std::vector<float> values(5, static_cast<float>(rank) + 0.5F);
    writer.write(7, layout, values);
    writer.add_step(7);
  }
  const apps::RecordedGradients recorded(folder);
  EXPECT_EQ(recorded.ranks(), 2);
  EXPECT_EQ(recorded.steps(), std::vector<std::uint64_t>{7});
  EXPECT_EQ(recorded.layouts()[0].tensors[1].offset, 4U);
  std::vector<float> values(5);
  recorded.read(7, 1, layout, values);
  EXPECT_EQ(values[4], 1.5F);

  const fs::path file = folder / "step-000007-rank-1-bucket-1.f32";
  fs::resize_file(file, 10);
  const auto cut = thrown_text(ErrorCode::bad_state, [&] { recorded.read(7, 1, layout, values); });
  EXPECT_NE(cut.find(file.string() + ": has 10 bytes"), std::string::npos) << cut;
  fs::remove(file);
  thrown_text(ErrorCode::unavailable, [&] { recorded.read(7, 1, layout, values); });

  const std::string good = apps::read_text(folder / "gradients.json");
  const auto refused = [&](const std::string& text) {
    apps::write_text(folder / "gradients.json", text);
    return thrown_text(ErrorCode::bad_state, [&] { const apps::RecordedGradients r(folder); });
  };
  for (std::size_t size = 0; size < good.size(); size += 11) refused(good.substr(0, size));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return refused(text);
  };
  with("\"ranks\": 2", "\"ranks\": 3");
  with("\"ranks\": 2", "\"ranks\": -1");
  with("\"elements\": 5", "\"elements\": 6");
  with("step-000007-rank-0", "../step-000007-rank-0");
  with("\"format\": 1", "\"format\": 2");
  fs::remove_all(folder);
}

TEST(Files, UnwritableAndFullPlacesAreReported) {
  EXPECT_NE(
      thrown_text(ErrorCode::unavailable, [] { apps::require_space("/proc/thinreduce", 1000); })
          .find("/proc/thinreduce"),
      std::string::npos);
  // More than any disk holds.
  const fs::path folder = fs::path(testing::TempDir()) / "space";
  const auto text = thrown_text(ErrorCode::unavailable,
                                [&] { apps::require_space(folder, std::uint64_t{1} << 53U); });
  EXPECT_NE(text.find("may need"), std::string::npos) << text;
  EXPECT_TRUE(fs::is_empty(folder));
}

}  // namespace
}  // namespace thinreduce::train::data_test

// Golden means: tests/golden/means.tsv pins the bits of every mean and the bytes that it took.
//
// Each line of the table is a whole run: a spec, the number of ranks, a seed, the number of steps
// and the sizes of the buckets, then the hash of all means of all steps and the bytes that all
// ranks sent. The table is checked on every SIMD target and on arm64, so that neither a payload nor
// a mean can change unnoticed. After a change that is meant, rewrite it with
// `THINREDUCE_WRITE_GOLDEN=1 build/release/bin/golden_means_test` and review the difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/links.h"
#include "tests/ranks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::golden_means_test {
namespace {

struct GoldenRun {
  std::string spec;
  int world = 1;
  std::uint64_t seed = 0;
  std::uint64_t steps = 1;
  // Buckets apart by ';', their tensors by ',', extents by 'x'. "4099?" is a bucket without shapes.
  std::string sizes;
  std::string hash;
  std::uint64_t bytes_sent = 0;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::filesystem::path table_file() {
  return std::filesystem::path(THINREDUCE_SOURCE_DIR) / "tests" / "golden" / "means.tsv";
}

// Comment lines keep their place: they group the runs.
struct GoldenTable {
  std::vector<std::string> comments;  // by line; empty where the line is a run
  std::vector<GoldenRun> runs;        // by line; empty spec where the line is a comment
};

GoldenTable read_table() {
  GoldenTable table;
  std::ifstream file(table_file());
  for (std::string line; std::getline(file, line);) {
    const bool comment = line.empty() || line[0] == '#';
    table.comments.push_back(comment ? line : "");
    GoldenRun& run = table.runs.emplace_back();
    if (comment) continue;
    const auto fields = split(line, '\t');
    if (fields.size() != 7) {
      ADD_FAILURE() << "a line with " << fields.size() << " fields instead of 7: " << line;
      table.runs.pop_back();
      table.comments.pop_back();
      continue;
    }
    run = {
        fields[0], std::stoi(fields[1]),  std::stoull(fields[2]), std::stoull(fields[3]), fields[4],
        fields[5], std::stoull(fields[6])};
  }
  return table;
}

std::vector<BucketLayout> buckets_of(const std::string& sizes) {
  std::vector<BucketLayout> buckets;
  for (const auto& text : split(sizes, ';')) {
    BucketLayout layout;
    layout.id = static_cast<std::uint32_t>(buckets.size());
    if (text.back() == '?') {
      layout.elements = std::stoull(text);
    } else {
      for (const auto& shape : split(text, ',')) {
        std::vector<std::int64_t> extents;
        for (const auto& extent : split(shape, 'x')) extents.push_back(std::stoll(extent));
        layout.add(fmt::format("tensor{}", layout.tensors.size()), extents);
      }
    }
    buckets.push_back(std::move(layout));
  }
  return buckets;
}

// Numbers between -1 and 1, by integers alone: the same on every machine.
class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) { (void)next(); }
  float next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32U)) / 2147483648.0F;
  }

 private:
  std::uint64_t state_;
};

// Mostly small values with a few large ones, as gradients have; two thirds are common to all ranks,
// so that methods with side information can use it.
std::vector<float> golden_gradient(std::size_t size, std::uint64_t seed, int rank) {
  Uniform common(seed);
  Uniform own(seed * 1009 + static_cast<std::uint64_t>(rank) + 1);
  std::vector<float> values(size);
  for (auto& value : values) {
    const float shared = common.next();
    const float noise = own.next();
    const float shared_cube = shared * shared * shared;
    const float noise_cube = noise * noise * noise;
    value = 0.01F * (shared_cube + 0.5F * noise_cube);
  }
  return values;
}

std::vector<float> golden_second_moment(const std::vector<float>& gradient, std::uint64_t seed) {
  Uniform factor(seed * 31 + 7);
  std::vector<float> moment(gradient);
  for (auto& value : moment) {
    const float scale = factor.next();
    const float square = value * value;
    value = square * (0.2F + 0.8F * (scale * scale));
  }
  return moment;
}

// Sets hash and bytes_sent of `run` to what it gives now on `link`; ranks must have the same bits.
void measure(GoldenRun& run, const Link& link) {
  const Spec spec = Spec::parse(run.spec);
  const auto buckets = buckets_of(run.sizes);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(run.world));
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(run.world));
  run_ranks(run.world, [&](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    Session session(std::move(transport), {.spec = run.spec,
                                           .min_elements = 64,
                                           .seed = run.seed,
                                           .link = link,
                                           .momentum_inside_ok = true});
    std::vector<BucketHandle> handles;
    for (const auto& layout : buckets) handles.push_back(session.add_bucket(layout));
    std::vector<std::uint64_t> means;
    for (std::uint64_t step = 0; step < run.steps; ++step) {
      std::vector<std::vector<float>> values;
      std::vector<std::vector<float>> moments;
      std::vector<std::future<Report>> pending;
      for (const auto& layout : buckets) {
        const std::uint64_t seed = (run.seed * 10007 + step) * 101 + layout.id;
        values.push_back(golden_gradient(layout.elements, seed, rank));
        moments.push_back(spec.info->second_moment ? golden_second_moment(values.back(), seed)
                                                   : std::vector<float>());
      }
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        pending.push_back(session.submit(handles[i], values[i], moments[i]));
      }
      for (auto& done : pending) done.get();
      for (const auto& mean : values) means.push_back(checksum(std::as_bytes(std::span(mean))));
    }
    hashes[static_cast<std::size_t>(rank)] = checksum(std::as_bytes(std::span(means)));
    bytes[static_cast<std::size_t>(rank)] = session.finish_step().bytes_sent;
  });
  run.bytes_sent = 0;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    EXPECT_EQ(hashes[rank], hashes[0]) << "rank " << rank << " has other bits than rank 0";
    run.bytes_sent += bytes[rank];
  }
  run.hash = fmt::format("{:016x}", hashes[0]);
}

TEST(GoldenMeans, EveryMeanHasTheBitsOfTheTable) {
  const GoldenTable table = read_table();
  ASSERT_FALSE(table.runs.empty()) << table_file();
  const bool write = std::getenv("THINREDUCE_WRITE_GOLDEN") != nullptr;
  std::ostringstream out;
  for (std::size_t line = 0; line < table.runs.size(); ++line) {
    const GoldenRun& golden = table.runs[line];
    if (golden.spec.empty()) {
      out << table.comments[line] << '\n';
      continue;
    }
    SCOPED_TRACE(testing::Message() << table_file() << ":" << line + 1 << ": " << golden.spec);
    GoldenRun now = golden;
    measure(now, kRingLink);
    out << fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", now.spec, now.world, now.seed, now.steps,
                       now.sizes, now.hash, now.bytes_sent);
    if (write) continue;
    EXPECT_EQ(now.hash, golden.hash) << "the means have changed";
    EXPECT_EQ(now.bytes_sent, golden.bytes_sent) << "the bytes on the wire have changed";
  }
  if (write) std::ofstream(table_file()) << out.str();
}

// The link decides how sums travel, not what they are. One run of each spec and sizes, with as many
// ranks as any of its lines has.
TEST(GoldenMeans, NoMeanDependsOnTheLink) {
  std::map<std::pair<std::string, std::string>, GoldenRun> runs;
  for (const GoldenRun& run : read_table().runs) {
    if (run.spec.empty()) continue;
    GoldenRun& largest = runs[{run.spec, run.sizes}];
    if (run.world > largest.world || largest.spec.empty()) largest = run;
  }
  for (const auto& [key, golden] : runs) {
    const std::string& spec = key.first;
    if (golden.world < 2) continue;
    for (const Link& link : {kOwnerLink, kDirectLink}) {
      SCOPED_TRACE(testing::Message() << spec << " on the link " << link.to_string());
      GoldenRun now = golden;
      measure(now, link);
      EXPECT_EQ(now.hash, golden.hash);
    }
  }
}

// A new method is pinned on the day it is registered.
TEST(GoldenMeans, TheTableHasEveryMethodAtItsDefault) {
  std::set<std::string> pinned;
  for (const GoldenRun& run : read_table().runs) pinned.insert(run.spec);
  for (const MethodInfo& info : methods()) {
    EXPECT_TRUE(pinned.contains(info.name)) << "no line of " << table_file() << " has the spec '"
                                            << info.name << "'; add one and rewrite the table";
  }
}

}  // namespace
}  // namespace thinreduce::golden_means_test

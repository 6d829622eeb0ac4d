// Messages of every method and collective: the bytes of the peers are those of the input, with
// frames and checksums that are right.
//
// A method must refuse them with an Error, after which its residual holds the whole gradient and
// its shared state is as before, or go on.
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzzed_specs.h"
#include "tests/fuzz/scripted_transport.h"
#include "tests/links.h"
#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::fuzz {
namespace {

// No message of buckets this small is larger, whatever a header announces.
constexpr std::size_t kMaxBytes = std::size_t{64} * 1024;
constexpr Link kLinks[] = {kRingLink, kOwnerLink, kDirectLink, kLocalNetwork};

struct Case {
  std::string spec;
  unsigned layout = 0;
  int world = 2;
  int rank = 0;
  unsigned link = 0;
};

Case read_case(Input& input) {
  Case read{.spec = spec_of(input.value<std::uint16_t>())};
  read.layout = input.value<std::uint8_t>() % 8;
  const auto place = input.value<std::uint8_t>();
  read.world = 2 + place % 2;
  read.rank = place / 2 % 4 % read.world;
  read.link = place / 8 % 4;
  return read;
}

Bytes seed_of(const Case& of) {
  Bytes seed;
  put(seed, key_of(of.spec));
  put(seed, static_cast<std::uint8_t>(of.layout));
  put(seed, static_cast<std::uint8_t>(of.world - 2 + of.rank * 2 + static_cast<int>(of.link) * 8));
  return seed;
}

// Tells whether a method owes something to the sum.
class Owes final : public Archive {
 public:
  using Archive::Archive;
  void summed(std::string_view, std::vector<float>&, Length) override { any = true; }
  void replicated(std::string_view, std::vector<float>&, Length) override {}
  void number(std::string_view, std::uint64_t&) override {}
  [[nodiscard]] bool loading() const override { return false; }
  bool any = false;

 private:
  void begin_section(std::size_t) override {}
  void end_section(std::size_t) override {}
};

// One rank with its method, over some steps.
class Rank {
 public:
  Rank(const Case& of, Transport& transport)
      : case_(of),
        transport_(transport),
        spec_(Spec::parse(of.spec)),
        layout_(layout_of(of.layout)) {
    method_ = spec_.make({.layout = layout_, .rank = transport.rank(), .world = transport.size()});
    Owes owes(transport.rank(), transport.size());
    method_->state(owes);
    // Momentum makes more of a gradient than it was.
    keeps_ = owes.any && !spec_.update() && !spec_.info->losses(spec_.options).discards;
  }

  [[nodiscard]] unsigned steps() const {
    return static_cast<unsigned>(
               std::min<std::uint64_t>(spec_.info->cycle(spec_.options).start, 4)) +
           2;
  }
  [[nodiscard]] FrameId id(unsigned step) const {
    return {.method = spec_.info->wire_id, .step = step, .elements = layout_.elements};
  }

  void step(unsigned step) {
    const auto own = gradient_of(layout_.elements, static_cast<unsigned>(transport_.rank()) + step);
    auto values = own;
    std::vector<float> moment;
    if (spec_.info->second_moment && case_.layout % 2 == 1) {
      moment = moment_of(layout_.elements, static_cast<unsigned>(transport_.rank()));
    }
    std::vector<float> owed = own;
    method_->add_residual(owed);
    const std::uint64_t fingerprint = method_->fingerprint();
    Exchange exchange(transport_, Seconds(20), id(step));
    exchange.link = kLinks[case_.link];
    try {
      method_->reduce({layout_, values, moment}, exchange);
      note_largest(values);
      return;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::internal) fail(error.what());
      trace(error.what());
    }
    expect(method_->fingerprint() == fingerprint, "after an error the shared state is as before");
    note_largest(owed);
    note_largest(values);
    if (keeps_) check_kept(owed);
    throw Error(ErrorCode::bad_frame, "refused");
  }

 private:
  // Peers may have sent values of any magnitude, and the rounding errors of those that a method
  // has subtracted stay.
  void note_largest(const std::vector<float>& values) {
    for (const float value : values) {
      largest_ = std::isfinite(value) ? std::max(largest_, std::abs(value))
                                      : std::numeric_limits<float>::max();
    }
  }
  void check_kept(const std::vector<float>& owed) {
    std::vector<float> kept(layout_.elements);
    method_->add_residual(kept);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (!std::isfinite(owed[i])) continue;
      expect(std::abs(kept[i] - owed[i]) <= 1e-4F * largest_,
             "after an error the residual holds the whole gradient: " + case_.spec);
    }
  }

  const Case& case_;
  Transport& transport_;
  Spec spec_;
  BucketLayout layout_;
  std::unique_ptr<Method> method_;
  bool keeps_ = false;
  float largest_ = 1;  // magnitude that this rank has seen
};

// Records what one rank of an honest world receives.
Bytes record(const Case& of) {
  auto transports = connect_threads(of.world);
  auto recording = std::make_unique<RecordingTransport>(
      std::move(transports[static_cast<std::size_t>(of.rank)]));
  const RecordingTransport& recorded = *recording;
  transports[static_cast<std::size_t>(of.rank)] = std::move(recording);
  std::vector<std::jthread> ranks;
  for (auto& transport : transports) {
    ranks.emplace_back([&of, &transport] {
      Rank rank(of, *transport);
      for (unsigned step = 0; step < rank.steps(); ++step) rank.step(step);
    });
  }
  ranks.clear();
  Bytes seed = seed_of(of);
  put_bytes(seed, recorded.script());
  return seed;
}

}  // namespace

void run(Input input) {
  const Case of = read_case(input);
  ScriptedTransport transport(of.rank, of.world, input, kMaxBytes);
  Rank rank(of, transport);
  for (unsigned step = 0; step < rank.steps() && !transport.exhausted(); ++step) {
    transport.begin(rank.id(step));
    if (!accepts([&] { rank.step(step); })) return;
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  unsigned number = 0;
  for (const std::string& spec : fuzzed_specs()) {
    for (const unsigned layout : {3U, 5U}) {
      const int world = 2 + static_cast<int>(number % 2);
      all.push_back(record({.spec = spec,
                            .layout = layout,
                            .world = world,
                            .rank = static_cast<int>(number / 2) % world,
                            .link = number % 4}));
      ++number;
    }
  }
  return all;
}

}  // namespace thinreduce::fuzz

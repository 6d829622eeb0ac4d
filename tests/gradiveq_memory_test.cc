// The heap memory of gradiveq: once the method is under way a step allocates nothing, and all
// memory together is at most two floats per element, the messages in flight, and the bases.
//
// operator new of this program counts, which is why it is a program of its own.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/gradiveq_world.h"
#include "thinreduce/method/spec.h"

namespace {

thread_local std::size_t allocations = 0;
thread_local int paused = 0;
std::atomic<std::ptrdiff_t> live_bytes = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  if (paused == 0) ++allocations;
  live_bytes += static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(std::malloc(size == 0 ? 1 : size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace thinreduce::gradiveq_memory_test {
namespace {

// Not the method's: messages, threads, what a test does.
class Pause {
 public:
  Pause() { ++paused; }
  ~Pause() { --paused; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
};
class Resume {
 public:
  Resume() : before_(paused) { paused = 0; }
  ~Resume() { paused = before_; }
  Resume(const Resume&) = delete;
  Resume& operator=(const Resume&) = delete;

 private:
  int before_;
};

// The method's side of a sum.
class Counted final : public SumCodec {
 public:
  explicit Counted(SumCodec& inner) : inner_(inner) {}
  [[nodiscard]] std::size_t units() const override { return inner_.units(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return inner_.unit_bytes(); }
  [[nodiscard]] std::span<std::byte> wire(Range range, int summed) override {
    return inner_.wire(range, summed);
  }
  void encode(Range range) override {
    const Resume resume;
    inner_.encode(range);
  }
  void add(Range range, int summed, std::span<const std::byte> incoming, int peer) override {
    const Resume resume;
    inner_.add(range, summed, incoming, peer);
  }
  void add_part(Range range, int summed, std::span<const std::byte> part, int peer) override {
    const Resume resume;
    inner_.add_part(range, summed, part, peer);
  }
  void decode(Range range, int peer) override {
    const Resume resume;
    inner_.decode(range, peer);
  }

 private:
  SumCodec& inner_;
};

GradiveqSettings counted_settings() {
  auto settings = gradiveq_settings(Spec::parse("gradiveq").options);
  settings.warmup = 6;
  settings.sum = [](Exchange& exchange, SumCodec& codec) {
    const Pause pause;
    Counted counted(codec);
    ring_all_reduce(exchange, counted, RingOptions{.segment_bytes = 4096});
  };
  return settings;
}

const std::vector<std::vector<std::int64_t>> kLayers = {
    {128, 64, 3, 3}, {128}, {256, 196}, {64, 32, 5, 5}, {10, 512}};

TEST(GradiveqMemory, AStepAllocatesNothingOnceUnderWay) {
  for (const char* order : {"auto", "paper"}) {
    for (const int world : {1, 3}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, layout " << order);
      const auto layout = layout_of(kLayers);
      const auto transports = connect_threads(world);
      auto settings = counted_settings();
      settings.layout = order;
      std::vector<std::unique_ptr<Method>> methods;
      for (int rank = 0; rank < world; ++rank) {
        methods.push_back(
            make_gradiveq(settings, {.layout = layout, .rank = rank, .world = world, .seed = 5}));
      }
      std::size_t quiet_steps = 0;
      std::size_t at_first = 0;
      for (unsigned step = 0; step < 45; ++step) {
        auto values = normal_gradients(world, layout.elements, step);
        std::vector<std::size_t> counts(values.size());
        std::vector<double> renewed(values.size());
        std::vector<std::jthread> ranks;
        for (std::size_t rank = 0; rank < values.size(); ++rank) {
          ranks.emplace_back([&, rank] {
            Exchange exchange(*transports[rank], Seconds(20), FrameId{.step = step});
            // The statistics of a step belong to the exchange; their memory is not the method's.
            exchange.statistics["loss"] = exchange.statistics["renewed"] = 0;
            const std::size_t before = allocations;
            methods[rank]->reduce(Bucket{layout, values[rank], {}}, exchange);
            counts[rank] = allocations - before;
            renewed[rank] = exchange.statistics["renewed"];
          });
        }
        ranks.clear();
        at_first += counts[0];
        // By then all buffers have had their longest step. New bases need room for eigenvectors.
        if (step < 30 || renewed[0] > 0) continue;
        ++quiet_steps;
        for (const auto count : counts) EXPECT_EQ(count, 0U) << "step " << step;
      }
      EXPECT_GT(quiet_steps, 5U);
      EXPECT_GT(at_first, 0U) << "nothing was counted";
    }
  }
}

TEST(GradiveqMemory, TwoFloatsAnElementAndTheBases) {
  for (const char* text : {"gradiveq", "gradiveq:layout=paper", "gradiveq:slice=256"}) {
    SCOPED_TRACE(text);
    auto settings = gradiveq_settings(Spec::parse(text).options);
    settings.warmup = 6;
    const auto layout = layout_of(kLayers);
    const auto transports = connect_threads(1);
    std::vector<float> values = normal_gradients(1, layout.elements, 0)[0];
    const std::ptrdiff_t before = live_bytes;
    const auto method = make_gradiveq(settings, {.layout = layout, .rank = 0, .world = 1});
    for (unsigned step = 0; step < 12; ++step) {
      Exchange exchange(*transports[0], Seconds(20), FrameId{.step = step});
      method->reduce(Bucket{layout, values, {}}, exchange);
    }
    const auto taken = static_cast<double>(live_bytes - before);
    MemoryArchive archive(0, 1);
    method->state(archive);
    double shown = 0;
    double bases = 0;
    for (const auto& [name, floats] : archive.vectors) {
      shown += static_cast<double>(floats.size());
      // A keeper's moments, the samples that wait for them, and what they are added up in.
      if (name == "moments") bases += 3 * static_cast<double>(floats.size());
      if (name == "basis") bases += 2 * static_cast<double>(floats.size());
    }
    const auto elements = static_cast<double>(layout.elements);
    EXPECT_LE(shown, 2 * elements + bases + 100);
    // Columns are padded to 16, a step's messages to its longest, and units have a description.
    EXPECT_LE(taken, 4 * (2 * elements + elements / 8 * 1.3 + 1.2 * bases) + 256 * 1024)
        << "bases " << 4 * bases;
  }
}

}  // namespace
}  // namespace thinreduce::gradiveq_memory_test

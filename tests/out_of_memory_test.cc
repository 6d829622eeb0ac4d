// Memory runs out at an allocation of a step, at each of the first and then at some in turn: the
// residual then holds the whole gradient, as after any other failure.
//
// operator new of this program fails on request, which is why it is a program of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/law_specs.h"
#include "tests/session_world.h"
#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/method/method.h"
#include "thinreduce/transport/transport.h"

namespace {

thread_local long left = -1;  // allocations until one fails; below 0: none does

void* allocate(void* memory) {
  if (left >= 0 && left-- == 0) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(std::malloc(size == 0 ? 1 : size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return allocate(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace thinreduce::out_of_memory_test {
namespace {

class OutOfMemory : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::size_t kElements = 300'000;  // several parts of a selector

  // Runs two steps; in the second, allocation `number` fails. Returns whether the step had as many.
  // The first step leaves some memory behind, which the second reuses.
  static bool run(long number) {
    const BucketLayout layout{.id = 0, .elements = kElements, .tensors = {}};
    const auto transports = connect_threads(1);
    const auto method = Spec::parse(GetParam()).make({.layout = layout});
    const auto step = [&](std::uint64_t which, std::vector<float>& values, long fails) {
      Exchange exchange(*transports[0], Seconds(60), {.step = which, .elements = kElements});
      left = fails;
      method->reduce(Bucket{layout, values, {}}, exchange);
      left = -1;
    };
    auto first = gradient(kElements / 2, 0, 0);  // few candidates: the second step needs more room
    first.resize(kElements);
    step(0, first, -1);
    std::vector<float> expected(kElements);
    method->add_residual(expected);
    auto values = gradient(kElements, 0, 1);
    for (std::size_t i = 0; i < kElements; ++i) expected[i] += values[i];
    try {
      step(1, values, number);
      return false;
    } catch (const std::bad_alloc&) {
      left = -1;
    }
    std::vector<float> owed(kElements);
    method->add_residual(owed);
    for (std::size_t i = 0; i < kElements; ++i) {
      if (owed[i] == expected[i]) continue;
      ADD_FAILURE() << "element " << i << " is " << owed[i] << ", expected " << expected[i];
      return false;
    }
    return true;
  }
};

TEST_P(OutOfMemory, LeavesTheWholeGradientInTheResidual) {
  long number = 0;
  for (; run(number); number += 1 + number / 16) {
  }
  EXPECT_GT(number, 0);
  RecordProperty("allocations", static_cast<int>(number));
}

INSTANTIATE_TEST_SUITE_P(Methods, OutOfMemory,
                         testing::Values("topk:collective=gather", "topk:collective=owner",
                                         "topk:chunk=4096", "topk:values=2bit", "demo",
                                         "demo:values=f32"),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace thinreduce::out_of_memory_test

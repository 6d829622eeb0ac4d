#include "tests/failing_memory.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace thinreduce {
namespace {

thread_local Shortage current;
thread_local bool struck = false;

// Counts an allocation; returns whether it fails.
bool fails() {
  if (current.number < 0) return false;
  if (current.number > 0) {
    --current.number;
    return false;
  }
  if (!current.lasting) current.number = -1;
  struck = true;
  return true;
}

void* unless_it_fails(void* memory) {
  if (fails()) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void begin_shortage(const Shortage& shortage) {
  struck = false;
  current = shortage;
}

bool end_shortage() {
  current = {};
  return struck;
}

}  // namespace thinreduce

void* operator new(std::size_t size) {
  return thinreduce::unless_it_fails(std::malloc(size == 0 ? 1 : size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return thinreduce::unless_it_fails(std::aligned_alloc(align, (size + align - 1) / align * align));
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

// Stands in for a header that Debian's libgloo-dev forgets to install, although Gloo's tcp/pair.h
// and tcp/context.h include it. Only the names and sizes of its classes matter here: Gloo's own
// code, inside its library, is the only user of their functions.
#pragma once

#if __has_include_next(<gloo/common/memory.h>)
#include_next <gloo/common/memory.h>
#else

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr {
  std::shared_ptr<T> target_;
};

template <typename T>
class WeakNonOwningPtr {
  std::weak_ptr<T> target_;
};

template <typename T>
class ShareableNonOwningPtr {
  std::shared_ptr<T> target_;
};

}  // namespace gloo

#endif

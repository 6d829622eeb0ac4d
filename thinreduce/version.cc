#include "thinreduce/version.h"

namespace thinreduce {

std::string_view version() {
  return THINREDUCE_VERSION;
}

}  // namespace thinreduce

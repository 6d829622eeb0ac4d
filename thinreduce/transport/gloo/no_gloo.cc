// Replaces gloo.cc in builds without Gloo.
#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/gloo.h"

namespace thinreduce {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unavailable,
              "this build has no gloo transport; install libgloo-dev and build again");
}

}  // namespace

std::unique_ptr<Transport> connect_gloo(const GlooOptions& /*options*/) {
  refuse();
}

std::unique_ptr<Transport> connect_gloo(const GlooOptions& /*options*/,
                                        gloo::rendezvous::Store& /*store*/) {
  refuse();
}

GlooOptions gloo_options_from_environment() {
  refuse();
}

bool have_gloo() {
  return false;
}

}  // namespace thinreduce

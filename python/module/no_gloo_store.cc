// Stands in for gloo_store.cc where Gloo is missing.
#include "python/module/transports.h"

namespace thinreduce::python {

// NOLINTNEXTLINE(performance-unnecessary-value-param): as with Gloo
std::unique_ptr<Transport> connect_through_store(const GlooOptions& options,
                                                 pybind11::object /*store*/) {
  return connect_gloo(options);  // says that there is no Gloo
}

}  // namespace thinreduce::python

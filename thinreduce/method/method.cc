#include "thinreduce/method/method.h"

namespace thinreduce {

const char* to_string(Algebra algebra) {
  switch (algebra) {
    case Algebra::sum:
      return "sum";
    case Algebra::integer_sum:
      return "integer sum";
    case Algebra::gather:
      return "gather";
    case Algebra::staged:
      return "staged";
  }
  return "unknown";
}

}  // namespace thinreduce

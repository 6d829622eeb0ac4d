// powersgd: approximates each matrix of the bucket by a product of two thin ones, found by one
// power iteration per training step. All matrices of a bucket share two ring sums.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo powersgd_info();

}  // namespace thinreduce

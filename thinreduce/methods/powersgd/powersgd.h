// PowerSGD: each matrix of the bucket as a product of two thin ones, found by one step of power
// iteration a training step. All matrices of a bucket share two ring sums.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo powersgd_info();

}  // namespace thinreduce

// Limits that several methods share.
#pragma once

#include <string_view>

#include "thinreduce/method/bucket.h"

namespace thinreduce {

// Throws Error{bad_input} unless every element of the bucket has an index below 2^32 - 1. `method`
// is named in the error.
void require_32bit_indices(std::string_view method, const BucketLayout& layout);

}  // namespace thinreduce

#include "thinreduce/engine/advice.h"

#include <fmt/format.h>

#include <new>

namespace thinreduce {

Error with_advice(const Error& error) {
  const auto advised = [&](std::string_view advice) {
    return fmt::format("{}; {}", error.what(), advice);
  };
  if (error.is_overflow()) {
    return Error::overflow(
        advised("lower the learning rate or the loss scale, or change the method"));
  }
  if (error.code() == ErrorCode::mismatch) {
    return {error.code(), advised("submit the same buckets in the same order and run the same "
                                  "build on all ranks")};
  }
  if (error.code() == ErrorCode::bad_frame) {
    return {error.code(),
            advised("run the same build on all ranks; if they do, bytes were altered in transit: "
                    "check the network")};
  }
  return error;
}

Error current_error(std::string_view place) {
  try {
    throw;
  } catch (const Error& error) {
    return with_advice(error);
  } catch (const std::bad_alloc&) {
    return {ErrorCode::unavailable, fmt::format("{}: out of memory", place)};
  } catch (const std::exception& error) {
    return {ErrorCode::internal,
            fmt::format("{}: internal error, please report it: {}", place, error.what())};
  }
}

}  // namespace thinreduce

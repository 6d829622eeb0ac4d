#include "thinreduce/engine/advice.h"

#include <fmt/format.h>

#include <string_view>

namespace thinreduce {

Error with_advice(const Error& error) {
  const std::string_view text = error.what();
  const auto advise = [&](std::string_view advice) {
    return Error(error.code(), fmt::format("{}; {}", text, advice));
  };
  if (error.code() == ErrorCode::mismatch) {
    return advise("submit the same buckets in the same order and run the same build on all ranks");
  }
  if (error.code() != ErrorCode::bad_frame) return error;
  if (text.find("overflow") == std::string_view::npos) {
    return advise("all ranks must run the same build over a network that alters nothing");
  }
  const bool says = text.find("lower the") != std::string_view::npos;
  return says ? error : advise("lower the learning rate or the loss scale");
}

}  // namespace thinreduce

#include "apps/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "apps/terminal.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

// Reserves the space in a file that is removed again. Returns 0 or the reason.
int try_reserving(const std::filesystem::path& folder, std::uint64_t bytes) {
  const std::string probe = (folder / fmt::format(".space-{}", ::getpid())).string();
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  // Beyond a limit on file sizes, posix_fallocate raises a signal that would end the process.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const int reason = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  std::signal(SIGXFSZ, before);
  ::close(file);
  ::unlink(probe.c_str());
  // Some file systems can't reserve space.
  return reason == EOPNOTSUPP || reason == EINVAL ? 0 : reason;
}

}  // namespace

void write_text(const std::filesystem::path& file, std::string_view text) {
  write_file(file, std::as_bytes(std::span(text)));
}

void write_standard_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("can't write to standard output: {}", std::strerror(errno)));
}

std::string read_text(const std::filesystem::path& file) {
  const auto bytes = read_file(file);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string plain_text(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const auto end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

void require_space(const std::filesystem::path& folder, std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("can't create the folder {}: {}", folder.string(), error.message()));
  }
  const int reason = try_reserving(folder, bytes);
  if (reason == 0) return;
  if (reason != ENOSPC && reason != EFBIG && reason != EDQUOT) {
    throw Error(ErrorCode::unavailable, fmt::format("can't write to the folder {}: {}",
                                                    folder.string(), std::strerror(reason)));
  }
  const auto space = std::filesystem::space(folder, error);
  throw Error(
      ErrorCode::unavailable,
      fmt::format("{}: {} are free, but this run may need {} ({}); free some space or "
                  "choose another folder",
                  folder.string(), show_bytes(error ? 0.0 : static_cast<double>(space.available)),
                  show_bytes(static_cast<double>(bytes)), std::strerror(reason)));
}

}  // namespace thinreduce::apps

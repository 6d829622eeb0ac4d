#include "thinreduce/engine/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const char* verb, int reason) {
  throw Error(ErrorCode::unavailable,
              fmt::format("can't {} {}: {}", verb, file.string(), std::strerror(reason)));
}

// Writes all bytes to disk. Returns 0 or the reason.
int write_through(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ::fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  const std::string partial = file.string() + ".partial";
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(file, "create", errno);
  int reason = write_through(fd, bytes);
  ::close(fd);
  if (reason == 0 && ::rename(partial.c_str(), file.c_str()) != 0) reason = errno;
  if (reason == 0) return;
  ::unlink(partial.c_str());
  fail(file, "write", reason);
}

std::vector<std::byte> read_file(const std::filesystem::path& file) {
  // A folder can be opened like a file, and then reports a meaningless size.
  if (std::filesystem::is_directory(file)) fail(file, "read", EISDIR);
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) fail(file, "read", errno);
  const auto size = in.tellg();
  if (size < 0) fail(file, "read", EIO);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!in) fail(file, "read", EIO);
  return bytes;
}

}  // namespace thinreduce

#include "apps/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "apps/terminal.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const char* what, int reason) {
  throw Error(ErrorCode::unavailable,
              fmt::format("can't {} {}: {}", what, file.string(), std::strerror(reason)));
}

// A file that is removed again unless it got its final name.
class Draft {
 public:
  explicit Draft(std::filesystem::path path) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) fail(path_, "create", errno);
  }
  ~Draft() {
    ::close(file_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void become(const std::filesystem::path& name) {
    if (::fsync(file_) != 0) fail(path_, "write", errno);
    if (::rename(path_.c_str(), name.c_str()) != 0) fail(name, "write", errno);
    path_.clear();
  }
  [[nodiscard]] int reserve(std::uint64_t bytes) const {
    return ::posix_fallocate(file_, 0, static_cast<off_t>(bytes));
  }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace

void write_file(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  Draft draft(fmt::format("{}.part-{}", file.string(), ::getpid()));
  draft.write(bytes);
  draft.become(file);
}

void write_file(const std::filesystem::path& file, std::string_view text) {
  write_file(file, std::as_bytes(std::span(text)));
}

std::vector<std::byte> read_file(const std::filesystem::path& file) {
  // A folder opens like a file, and claims to be of any size.
  if (std::filesystem::is_directory(file)) fail(file, "read", EISDIR);
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) fail(file, "read", errno);
  const auto size = in.tellg();
  if (size < 0) fail(file, "read", EISDIR);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!in) fail(file, "read", EIO);
  return bytes;
}

std::string read_text(const std::filesystem::path& file) {
  const auto bytes = read_file(file);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void require_space(const std::filesystem::path& folder, std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, "create the folder", error.value());
  const Draft probe(folder / fmt::format(".space-{}", ::getpid()));
  // A limit on the size of files would end the process instead of the call.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const int reason = probe.reserve(bytes);
  std::signal(SIGXFSZ, before);
  if (reason == EOPNOTSUPP || reason == EINVAL || reason == 0) return;
  const auto space = std::filesystem::space(folder, error);
  throw Error(
      ErrorCode::unavailable,
      fmt::format("{}: {}; this run may need {}, {} are free; free some or choose another folder",
                  folder.string(), std::strerror(reason), show_bytes(static_cast<double>(bytes)),
                  show_bytes(error ? 0.0 : static_cast<double>(space.available))));
}

}  // namespace thinreduce::apps

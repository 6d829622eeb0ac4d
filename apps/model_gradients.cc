#include "apps/model_gradients.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>  // mkdtemp
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "apps/program.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

namespace fs = std::filesystem;

// The exit code of a child whose program can't be started.
constexpr int kNotStarted = 127;

fs::path make_temporary_folder() {
  std::error_code failed;
  const fs::path parent = fs::temp_directory_path(failed);
  std::string name = (parent / "thinreduce-plan-XXXXXX").string();
  if (failed || ::mkdtemp(name.data()) == nullptr) {
    throw Error(ErrorCode::unavailable,
                fmt::format("can't create the temporary folder {}: {}; set TMPDIR to a folder that "
                            "can be written",
                            name, failed ? failed.message() : std::strerror(errno)));
  }
  return name;
}

// Runs the command without its standard output and returns its exit code; -1: a signal ended it.
int run_silently(const std::vector<std::string>& command) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(kNotStarted);
  }
  if (child < 0) return kNotStarted;
  // Ctrl-C ends the child, and this process then deletes the folder.
  const auto before = std::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::signal(SIGINT, before);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<std::string> recording_command(const ModelGradientsOptions& options,
                                           const fs::path& folder) {
  const int ranks = std::min(options.ranks, ModelGradients::kMaxRanks);
  std::vector<std::string> command{trainer_path(),     "--record-only",
                                   "--model",          options.model,
                                   "--ranks",          std::to_string(ranks),
                                   "--save-every",     "1",
                                   "--stop-after",     std::to_string(ModelGradients::kSteps),
                                   "--save-gradients", folder.string()};
  if (!options.data_dir.empty()) {
    command.insert(command.end(), {"--data-dir", options.data_dir.string()});
  }
  return command;
}

void record_with_trainer(const ModelGradientsOptions& options, const fs::path& folder) {
  const std::vector<std::string> command = recording_command(options, folder);
  const int code = run_silently(command);
  if (code == 0) return;
  if (code < 0) throw Error(ErrorCode::unavailable, "the trainer was ended by a signal");
  constexpr const char* kOthers =
      "or plan without --model: with --gradients DIR, recorded by `thinreduce train "
      "--save-gradients` elsewhere, or with a synthetic gradient of --floats N";
  if (code == kNotStarted) {
    throw Error(ErrorCode::unavailable,
                fmt::format("can't start {}, which computes the gradients of --model {}: install "
                            "libtorch-dev and libpng-dev (make setup) and build again, {}",
                            command[0], options.model, kOthers));
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("the trainer could not compute gradients of --model {}; its message is "
                          "above. Do what it says, {}. The command was: {}",
                          options.model, kOthers, fmt::join(command, " ")));
}

}  // namespace

std::string trainer_path() {
  const std::string own = own_path();
  return own.substr(0, own.rfind('/') + 1) + "thinreduce-train";
}

ModelGradients::ModelGradients(const ModelGradientsOptions& options)
    : folder_(make_temporary_folder()) {
  try {
    record_with_trainer(options, folder_);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
}

ModelGradients::~ModelGradients() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace thinreduce::apps

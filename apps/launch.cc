#include "apps/launch.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "apps/program.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/mpi/mpi.h"
#include "thinreduce/transport/socket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::apps {
namespace {

void print_error(const std::string& what) {
  // A single write keeps the lines of several ranks apart.
  const std::string line = fmt::format("thinreduce: {}\n", what);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string with_rank(int rank, const std::string& what) {
  const std::string prefix = fmt::format("rank {}: ", rank);
  return what.starts_with(prefix) ? what : prefix + what;
}

// Prints the errors of the ranks of this process: each text once, and that a rank has lost another
// only if there is no other error, which would be the cause.
class RankErrors {
 public:
  void add(int rank, const std::exception& error) {
    const std::lock_guard lock(mutex_);
    const auto* const known = dynamic_cast<const Error*>(&error);
    const std::string prefix = fmt::format("rank {}: ", rank);
    std::string text = error.what();
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
    if (known != nullptr && known->code() == ErrorCode::lost_peer) {
      lost_.emplace(text, with_rank(rank, text));
    } else if (printed_.insert(text).second) {
      print_error(with_rank(rank, text));
    }
  }
  // Must be called when all ranks have ended.
  void finish() const {
    if (!printed_.empty()) return;
    for (const auto& [text, line] : lost_) print_error(line);
  }

 private:
  std::mutex mutex_;
  // Without their ranks; the lines of the lost peers, with the rank, by those.
  std::set<std::string> printed_;
  std::map<std::string, std::string> lost_;
};

// Runs one connected rank and returns its exit code.
int run_rank(const LaunchOptions& options, std::unique_ptr<Transport> connected,
             const RankMain& rank_main, RankErrors& errors) {
  const int rank = connected->rank();
  std::shared_ptr<Transport> transport;
  try {
    transport = throttle(std::move(connected), options.link, options.timeout);
    rank_main(transport);
    return 0;
  } catch (const std::exception& error) {
    if (transport) transport->abandon(error.what());
    errors.add(rank, error);
    return exit_code(error);
  }
}

// The same for the only rank of this process.
int run_rank(const LaunchOptions& options, std::unique_ptr<Transport> connected,
             const RankMain& rank_main) {
  RankErrors errors;
  const int code = run_rank(options, std::move(connected), rank_main, errors);
  errors.finish();
  return code;
}

int run_threads(const LaunchOptions& options, const RankMain& rank_main) {
  auto transports = connect_threads(ranks_of(options));
  if (options.simulate) {
    auto simulated =
        simulate(std::move(transports), {.links = *options.simulate, .threads = options.threads});
    transports.assign(std::make_move_iterator(simulated.begin()),
                      std::make_move_iterator(simulated.end()));
  }
  // Wrong usage on one rank is the cause of the failures of the others, and has the larger code.
  std::vector<int> codes(transports.size());
  RankErrors errors;
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&, own = codes.begin() + transport->rank()] {
      *own = run_rank(options, std::move(transport), rank_main, errors);
    });
  }
  for (auto& thread : threads) thread.join();
  errors.finish();
  return *std::ranges::max_element(codes);
}

void check_world(const LaunchOptions& options, int world, const char* source) {
  if (options.ranks > 0 && options.ranks != world) {
    throw Error(ErrorCode::bad_input,
                fmt::format("--ranks {} was given, but {} says {}; leave out --ranks or make them "
                            "equal",
                            options.ranks, source, world));
  }
}

// Replaces this process. Returns only when that fails.
void execute(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());
}

pid_t start_rank(const LaunchOptions& options, int rank, int world, std::uint16_t port) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  // Ranks must not outlive the launcher.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(world).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  execute("/proc/self/exe", options.arguments);
  ::_exit(127);
}

// Throws for a network interface that this machine lacks, once and before any rank starts.
void check_interface(const LaunchOptions& options) {
  const char* variable = std::getenv("THINREDUCE_INTERFACE");
  const std::string name =
      options.interface.empty() && variable != nullptr ? variable : options.interface;
  if (name.empty() || ::if_nametoindex(name.c_str()) != 0) return;
  throw Error(
      ErrorCode::bad_input,
      fmt::format("there is no network interface '{}'{} on this machine; `ip link` lists them",
                  name, options.interface.empty() ? ", which THINREDUCE_INTERFACE names," : ""));
}

// Starts all ranks on this machine and waits for them. After one has failed, the others notice by
// themselves; those that still run after kGrace are killed.
int run_local_processes(const LaunchOptions& options) {
  constexpr auto kGrace = std::chrono::seconds(10);
  check_interface(options);
  (void)secret_of(options);
  const int world = ranks_of(options);
  const std::uint16_t port = free_port();
  // A terminal sends Ctrl-C to the ranks as well: ignore it here and wait for them.
  std::signal(SIGINT, SIG_IGN);
  std::map<pid_t, int> running;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = start_rank(options, rank, world, port);
    if (child < 0) {
      for (const auto& [pid, started] : running) ::kill(pid, SIGTERM);
      throw Error(ErrorCode::unavailable,
                  fmt::format("can't start rank {} of {}: {}", rank, world, std::strerror(errno)));
    }
    running[child] = rank;
  }
  int code = 0;
  bool killing = false;
  Clock::time_point failed_at{};
  while (!running.empty()) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, code == 0 ? 0 : WNOHANG);
    if (child < 0 && errno == EINTR) continue;
    if (child < 0) break;
    if (child == 0) {
      if (!killing && Clock::now() - failed_at > kGrace) {
        killing = true;
        for (const auto& [pid, rank] : running) ::kill(pid, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    if (WIFSIGNALED(status) && !killing) {
      print_error(fmt::format("rank {} was ended by signal {} ({})", running[child],
                              WTERMSIG(status), strsignal(WTERMSIG(status))));
    }
    if (status != 0 && code == 0) failed_at = Clock::now();
    if (status != 0) {
      const bool usage = WIFEXITED(status) && WEXITSTATUS(status) == kUsage;
      code = std::max(code, usage ? kUsage : kFailed);
    }
    running.erase(child);
  }
  return code;
}

int run_gloo(const LaunchOptions& options, const RankMain& rank_main) {
  if (!have_gloo()) (void)connect_gloo({});  // throws an error that says what to install
  if (starts_ranks(options)) return run_local_processes(options);
  GlooOptions gloo = gloo_options_from_environment();
  check_world(options, gloo.world, "WORLD_SIZE");
  if (!options.interface.empty()) gloo.interface = options.interface;
  gloo.secret = secret_of(options);
  gloo.connect_timeout = options.timeout;
  return run_rank(options, connect_gloo(gloo), rank_main);
}

int run_mpi(const LaunchOptions& options, const RankMain& rank_main) {
  if (have_mpi() && starts_ranks(options)) {
    // By default mpirun refuses to run as root and with more ranks than cores; a benchmark may do
    // both.
    const int world = ranks_of(options);
    std::vector<std::string> command{"mpirun", "--oversubscribe", "-n", std::to_string(world)};
    if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
    command.push_back(own_path());
    command.insert(command.end(), options.arguments.begin() + 1, options.arguments.end());
    execute(command[0], command);
    throw Error(ErrorCode::unavailable,
                fmt::format("can't start mpirun: {}; install openmpi-bin or choose another "
                            "--transport",
                            std::strerror(errno)));
  }
  const Secret secret = secret_of(options);
  auto transport = connect_mpi();
  check_world(options, transport->size(), "mpirun");
  transport = authenticate(std::move(transport), secret, options.timeout);
  return run_rank(options, std::move(transport), rank_main);
}

}  // namespace

bool starts_ranks(const LaunchOptions& options) {
  if (options.transport == "mpi") return !under_mpi();
  const bool launched = std::getenv("RANK") != nullptr || std::getenv("WORLD_SIZE") != nullptr;
  return options.transport != "gloo" || !launched;
}

Secret secret_of(const LaunchOptions& options) {
  return options.secret_file.empty() ? Secret::from_environment()
                                     : Secret::from_file(options.secret_file);
}

std::string link_text(const LaunchOptions& options) {
  return options.simulate ? options.simulate->to_string() : options.link.to_string();
}

int launch(const LaunchOptions& options, const RankMain& rank_main) {
  if (options.simulate && options.link.limits()) {
    throw Error(ErrorCode::bad_input,
                "--simulate has links of its own, in virtual time: leave out --link or --simulate");
  }
  if (options.simulate && options.transport != "threads") {
    throw Error(ErrorCode::bad_input,
                fmt::format("--simulate runs ranks as threads: leave out --transport {}",
                            options.transport));
  }
  if (!options.interface.empty() && options.transport != "gloo") {
    throw Error(ErrorCode::bad_input,
                fmt::format("--interface applies to --transport gloo, and this is {}: leave out "
                            "--interface or add --transport gloo",
                            options.transport));
  }
  if (!options.secret_file.empty() && options.transport == "threads") {
    throw Error(ErrorCode::bad_input,
                "--secret-file applies to --transport gloo and mpi, and this is threads: leave out "
                "--secret-file or add --transport gloo");
  }
  if (options.transport == "gloo") return run_gloo(options, rank_main);
  if (options.transport == "mpi") return run_mpi(options, rank_main);
  return run_threads(options, rank_main);
}

}  // namespace thinreduce::apps

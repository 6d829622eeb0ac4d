#include "apps/elastic.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce::apps {
namespace {

constexpr const char* kSocketVariable = "THINREDUCE_ELASTIC_SOCKET";
// The longest time for which a rank that dies while others connect to it can hold them up.
constexpr Seconds kConnectTimeout{10};

// A message in either direction; the socket keeps them apart.
struct Message {
  enum class What : std::uint8_t {
    meet,   // from a rank: it waits for a new world
    call,   // to a rank: it should ask for one after its step
    place,  // to a rank: its place in the new world
  };
  What what = What::meet;
  std::int32_t rank = 0;
  std::int32_t world = 0;
  std::uint16_t port = 0;
  bool joins = false;
};

bool send_message(int socket, const Message& message) {
  return ::send(socket, &message, sizeof message, MSG_NOSIGNAL) == sizeof message;
}

// Returns false when the other side is gone.
bool receive_message(int socket, Message& message) {
  ssize_t received = 0;
  do {
    received = ::recv(socket, &message, sizeof message, 0);
  } while (received < 0 && errno == EINTR);
  return received == sizeof message;
}

bool is_readable(int socket) {
  pollfd one{.fd = socket, .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

void say(const std::string& what) {
  const std::string line = fmt::format("thinreduce: {}\n", what);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::atomic<int> wanted_ranks = 0;    // by SIGUSR1
std::atomic<bool> must_stop = false;  // by SIGTERM

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}

  int run() {
    const int ranks = ranks_of(options_);
    std::signal(SIGINT, SIG_IGN);  // a terminal sends it to the ranks as well: wait for them
    std::signal(SIGUSR1, [](int /*signal*/) { ++wanted_ranks; });
    std::signal(SIGTERM, [](int /*signal*/) { must_stop = true; });
    for (int i = 0; i < ranks; ++i) start();
    while (!members_.empty()) {
      for (; wanted_ranks > 0; --wanted_ranks) add();
      if (must_stop.exchange(false)) end_all(SIGINT);  // they save and end
      read_messages();
      reap();
      dismiss();
      open_world();
    }
    return code_;
  }

 private:
  struct Member {
    pid_t process = 0;
    int socket = -1;
    bool waits = false;  // for a meeting
    bool was_in_world = false;
  };

  void start() {
    std::array<int, 2> sockets{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("can't make a socket for a rank: {}", std::strerror(errno)));
    }
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) {
      for (const int socket : sockets) ::close(socket);
      throw Error(ErrorCode::unavailable,
                  fmt::format("can't start a rank: {}", std::strerror(errno)));
    }
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ranks must not outlive the launcher
      if (::getppid() != parent) ::_exit(1);
      const int own = ::dup(sockets[1]);  // without close-on-exec
      ::setenv(kSocketVariable, std::to_string(own).c_str(), 1);
      std::vector<char*> argv;
      for (const auto& one : options_.arguments) argv.push_back(const_cast<char*>(one.c_str()));
      argv.push_back(nullptr);
      ::execv("/proc/self/exe", argv.data());
      ::_exit(127);
    }
    ::close(sockets[1]);
    members_[next_++] = {.process = child, .socket = sockets[0]};
  }

  // Starts a further rank; the others go on without it if that fails.
  void add() {
    try {
      start();
    } catch (const Error& error) {
      say(error.what());
    }
  }

  void end_all(int signal) const {
    for (const auto& [number, member] : members_) ::kill(member.process, signal);
  }

  // Ends ranks that wait to join a run which is over.
  void dismiss() {
    over_ = opened_ &&
            std::ranges::none_of(members_, [](const auto& one) { return one.second.was_in_world; });
    if (over_) end_all(SIGKILL);
  }

  // Waits a little for messages and takes note of them.
  void read_messages() {
    std::vector<pollfd> sockets;
    for (const auto& [number, member] : members_) {
      sockets.push_back({.fd = member.socket, .events = POLLIN, .revents = 0});
    }
    constexpr int kMilliseconds = 20;  // also the time until a rank that ended is noticed
    if (::poll(sockets.data(), sockets.size(), kMilliseconds) <= 0) return;
    for (auto& [number, member] : members_) {
      Message message;
      if (!is_readable(member.socket) || !receive_message(member.socket, message)) continue;
      member.waits = true;
      if (!member.was_in_world) call_others();
    }
  }

  void call_others() const {
    for (const auto& [number, member] : members_) {
      if (member.was_in_world && !member.waits)
        (void)send_message(member.socket, {Message::What::call});
    }
  }

  // Takes note of ranks that have ended.
  void reap() {
    for (auto one = members_.begin(); one != members_.end();) {
      int status = 0;
      if (::waitpid(one->second.process, &status, WNOHANG) != one->second.process) {
        ++one;
        continue;
      }
      const bool killed = WIFSIGNALED(status);
      const pid_t process = one->second.process;
      const bool was_in_world = one->second.was_in_world;
      ::close(one->second.socket);
      one = members_.erase(one);
      if (over_) continue;
      code_ = status == 0 ? 0 : kFailed;
      if (WIFEXITED(status) && WEXITSTATUS(status) == kUsage) code_ = kUsage;
      if (!killed) continue;
      say(fmt::format("the rank of process {} was ended by signal {} ({}){}", process,
                      WTERMSIG(status), strsignal(WTERMSIG(status)),
                      was_in_world && !members_.empty() ? "; a new one starts" : ""));
      if (was_in_world && !members_.empty()) add();
    }
  }

  // Gives all ranks their places if none is missing. A new rank that has not asked yet is not
  // waited for, unless this is the first world.
  void open_world() {
    std::vector<Member*> present;
    const bool is_first = !opened_;
    for (auto& [number, member] : members_) {
      if (!member.waits && (member.was_in_world || is_first)) return;
      if (member.waits) present.push_back(&member);
    }
    if (present.empty()) return;
    // Ranks of the old world come first: rank 0 writes the run folder.
    // Not that of std::ranges, which clang 14 can't compile with the headers of GCC 12.
    std::stable_partition(present.begin(), present.end(),
                          [](const Member* one) { return one->was_in_world; });
    const std::uint16_t port = free_port();
    for (std::size_t rank = 0; rank < present.size(); ++rank) {
      Member& member = *present[rank];
      (void)send_message(member.socket, {.what = Message::What::place,
                                         .rank = static_cast<std::int32_t>(rank),
                                         .world = static_cast<std::int32_t>(present.size()),
                                         .port = port,
                                         .joins = !is_first && !member.was_in_world});
      member.waits = false;
    }
    for (Member* member : present) member->was_in_world = true;
    opened_ = true;
  }

  const LaunchOptions& options_;
  std::map<int, Member> members_;  // in the order of their start
  int next_ = 0;
  bool opened_ = false;  // whether there was a world
  bool over_ = false;    // whether all ranks that were in one have ended
  int code_ = 0;         // exit code of the rank that ended last
};

}  // namespace

std::shared_ptr<Transport> ElasticRank::meet() {
  constexpr int kTries = 10;
  for (int tried = 1;; ++tried) {
    Message message;
    bool alive = send_message(socket_, {Message::What::meet});
    while (alive && message.what != Message::What::place) {
      alive = receive_message(socket_, message);
    }
    if (!alive) throw Error(ErrorCode::lost_peer, "the launcher of the ranks is gone");
    joins_ = message.joins;
    GlooOptions gloo;
    gloo.rank = message.rank;
    gloo.world = message.world;
    gloo.master_port = message.port;
    gloo.interface = options_.interface;
    gloo.secret = secret_of(options_);
    gloo.connect_timeout =
        tried < kTries ? std::min(kConnectTimeout, options_.timeout) : options_.timeout;
    try {
      return throttle(connect_gloo(gloo), options_.link, options_.timeout);
    } catch (const Error& error) {
      // A rank may have died since, or another program may have taken the port.
      const bool may_pass = error.code() == ErrorCode::lost_peer ||
                            error.code() == ErrorCode::timeout ||
                            error.code() == ErrorCode::unavailable;
      if (!may_pass || tried == kTries) throw;
    }
  }
}

bool is_elastic_rank() {
  return std::getenv(kSocketVariable) != nullptr;
}

bool ElasticRank::is_called() const {
  return is_readable(socket_);
}

int launch_elastic(const LaunchOptions& options, const ElasticMain& rank_main) {
  if (!have_gloo()) (void)connect_gloo({});  // throws an error that says what to install
  if (!is_elastic_rank()) return Launcher(options).run();
  ElasticRank rank(options, std::atoi(std::getenv(kSocketVariable)));
  try {
    rank_main(rank);
    return 0;
  } catch (const std::exception& error) {
    say(error.what());
    return exit_code(error);
  }
}

}  // namespace thinreduce::apps

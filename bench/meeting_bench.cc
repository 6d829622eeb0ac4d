// Times how the ranks of a world meet over Gloo, as processes of this machine.
//
//   meeting_bench [RANKS...]
//
// Prints per world the seconds from the moment when all processes exist until the last rank is
// connected to all others, the CPU seconds of all ranks together, and the bytes that they have sent
// together, with the headers of TCP and IP. The bytes are those of a network namespace of its own;
// that needs root, without which they are left out.
#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

constexpr Seconds kLimit{300};

// Enters a network namespace with a loopback interface and nothing else.
bool enter_own_network() {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{.ifr_ifrn = {"lo"}, .ifr_ifru = {}};
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return ::ioctl(socket.fd(), SIOCSIFFLAGS, &request) == 0;
}

// Returns the bytes that were sent over the loopback interface so far.
std::uint64_t loopback_bytes() {
  std::ifstream file("/proc/self/net/dev");
  std::string word;
  std::uint64_t bytes = 0;
  while (file >> word && word != "lo:") continue;
  for (int field = 0; field <= 8; ++field) file >> bytes;  // 8 of receiving come first
  return bytes;
}

struct Pipe {
  Pipe() {
    if (::pipe(ends.data()) != 0) std::abort();
  }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  std::array<int, 2> ends{};
};

// A rank: waits for the start, connects, says so and waits for its end.
[[noreturn]] void run_rank(int rank, int world, std::uint16_t port, int start, int done) {
  char byte = 0;
  static_cast<void>(::read(start, &byte, 1));
  GlooOptions options{.rank = rank, .world = world, .master_port = port, .interface = {}};
  options.connect_timeout = kLimit;
  try {
    const auto transport = connect_gloo(options);
    byte = 'y';
    static_cast<void>(::write(done, &byte, 1));
    for (;;) ::pause();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    byte = 'n';
    static_cast<void>(::write(done, &byte, 1));
  }
  std::_Exit(1);
}

struct Times {
  double seconds;
  double cpu;  // CPU seconds of all ranks together, until their processes have ended
};

double cpu_of_children() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Returns nothing if a rank failed.
std::optional<Times> measure(int world) {
  const double cpu_before = cpu_of_children();
  const std::uint16_t port = free_port();
  Pipe start;
  Pipe done;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) run_rank(rank, world, port, start.ends[0], done.ends[1]);
    ranks.push_back(child);
  }
  const auto began = Clock::now();
  const std::string go(ranks.size(), 'g');
  static_cast<void>(::write(start.ends[1], go.data(), go.size()));
  bool all = true;
  for (int rank = 0; rank < world && all; ++rank) {
    char byte = 0;
    all = ::read(done.ends[0], &byte, 1) == 1 && byte == 'y';
  }
  const double seconds = Seconds(Clock::now() - began).count();
  for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
  for (const pid_t rank : ranks) ::waitpid(rank, nullptr, 0);
  if (!all) return std::nullopt;
  return Times{seconds, cpu_of_children() - cpu_before};
}

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  std::vector<int> worlds;
  for (int i = 1; i < argc; ++i) worlds.push_back(std::stoi(argv[i]));
  if (worlds.empty()) worlds = {64, 128, 256, 512};
  const bool counts = thinreduce::enter_own_network();
  for (const int world : worlds) {
    const std::uint64_t before = thinreduce::loopback_bytes();
    const auto times = thinreduce::measure(world);
    if (!times) return 1;
    fmt::print("{} ranks: {:.2f} s, {:.1f} CPU s", world, times->seconds, times->cpu);
    if (counts) {
      const auto bytes = static_cast<double>(thinreduce::loopback_bytes() - before);
      fmt::print(", {:.1f} MB, {:.0f} bytes per pair of ranks", bytes / 1e6,
                 bytes / (0.5 * world * (world - 1)));
    }
    fmt::print("\n");
  }
  return 0;
}

#include "thinreduce/transport/gloo/adopted_mesh.h"

#include <fmt/format.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <future>
#include <tuple>
#include <utility>
#include <vector>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"

namespace thinreduce {
namespace {

namespace tcp = gloo::transport::tcp;

// Runs work on the thread of a device.
class OnDeviceThread final : public tcp::Handler {
 public:
  OnDeviceThread(tcp::Device& device, std::function<void()> work)
      : work_(std::move(work)), event_(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!event_) {
      throw Error(ErrorCode::unavailable, "can't wake Gloo's thread: " + describe_errno(errno));
    }
    device.registerDescriptor(event_.fd(), EPOLLIN, this);
    std::exception_ptr failure;
    try {
      work_.get_future().get();
    } catch (...) {
      failure = std::current_exception();
    }
    // Returns when the device's thread has left handleEvents().
    device.unregisterDescriptor(event_.fd(), this);
    if (failure) std::rethrow_exception(failure);
  }

  void handleEvents(int /*events*/) override {
    std::uint64_t count = 0;
    if (::read(event_.fd(), &count, sizeof(count)) == sizeof(count)) work_();
  }

 private:
  std::packaged_task<void()> work_;
  Socket event_;
};

// Only for pairs that wait synchronously, which ours never do.
constexpr std::chrono::milliseconds kPairTimeout = std::chrono::hours(1);

// A pair that is connected from the beginning. Construct it on the device's thread: then no event
// of the listener, which the base class opens, is handled before it is closed.
class AdoptedPair final : public tcp::Pair {
 public:
  AdoptedPair(tcp::Context* context, tcp::Device* device, int peer, PeerLink link)
      : Pair(context, device, peer, kPairTimeout) {
    const std::lock_guard lock(m_);
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
    self_ = tcp::Address(own_address(link.socket).storage);
    peer_ = tcp::Address(link.address.storage);
    device_->registerDescriptor(link.socket.fd(), EPOLLIN, this);
    fd_ = link.socket.release();
    setLocalRank(0);  // Gloo keeps a number here that nothing of ours reads.
    changeState(CONNECTED);
  }

  // Closes the connection; call it on the device's thread. The pair may be destroyed once that
  // thread has handled the events that it has already taken from the system.
  void leave() {
    const std::lock_guard lock(m_);
    if (state_ != CLOSED) changeState(CLOSED);
    left_ = true;
  }

  // Nothing else would catch what Gloo throws on the device's thread.
  void handleEvents(int events) override {
    if (left_) return;
    try {
      Pair::handleEvents(events);
    } catch (const std::exception& e) {
      const std::lock_guard lock(m_);
      if (state_ != CLOSED) refuse(e.what());
    }
  }

 private:
  // Reads the header of a message itself and checks it before Gloo acts on it: Gloo skips headers
  // that it does not know, and waits for bytes that never come. The caller holds the lock.
  bool read() override {
    if (rx_.nread < sizeof(rx_.preamble)) {
      auto* const header = reinterpret_cast<char*>(&rx_.preamble);
      const auto got = ::recv(fd_, header + rx_.nread, sizeof(rx_.preamble) - rx_.nread, 0);
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) return Pair::read();  // the connection is over, which Gloo finds out itself
      rx_.nread += static_cast<std::size_t>(got);
      if (rx_.nread < sizeof(rx_.preamble)) return false;
      if (!plausible()) {
        const auto& it = rx_.preamble;
        refuse(fmt::format("bytes {}, opcode {}, slot {}, offset {}, length {}, remote offset {}",
                           it.nbytes, it.opcode, it.slot, it.offset, it.length, it.roffset));
        return false;
      }
    }
    return Pair::read();
  }

  // Returns whether a header may be one of Gloo's for unbound buffers. One that carries a message
  // must be for a receive that this rank has started: Gloo throws otherwise, after it has forgotten
  // the receive.
  [[nodiscard]] bool plausible() {
    const auto& header = rx_.preamble;
    if (header.offset != 0 || header.roffset != 0) return false;
    if (header.opcode == tcp::Op::SEND_UNBOUND_BUFFER) {
      const auto receives = localPendingRecv_.find(header.slot);
      return header.nbytes == sizeof(header) + header.length &&
             receives != localPendingRecv_.end() && !receives->second.empty() &&
             header.length <= std::get<2>(receives->second.front());
    }
    return header.nbytes == sizeof(header) && (header.opcode == tcp::Op::NOTIFY_SEND_READY ||
                                               header.opcode == tcp::Op::NOTIFY_RECV_READY);
  }

  // Closes the connection; every wait for the peer ends with the error.
  void refuse(const std::string& what) {
    signalException(std::make_exception_ptr(
        Error(ErrorCode::bad_frame,
              fmt::format("rank {} sent bytes that Gloo can't read ({}); they were altered in "
                          "transit, or the rank runs another build",
                          rank_, what))));
  }

  bool left_ = false;  // used by the device's thread alone
};

class AdoptedPairs final : public tcp::Context {
 public:
  using tcp::Context::Context;

  // Gloo waits up to 10 ms per pair that another thread than the device's closes.
  ~AdoptedPairs() override {
    try {
      OnDeviceThread(*device_, [this] {
        for (AdoptedPair* pair : adopted_) pair->leave();
      });
    } catch (const std::exception&) {
      // The base class closes them one by one.
    }
  }

  void adopt(int peer, PeerLink link) {
    auto pair = std::make_unique<AdoptedPair>(this, device_.get(), peer, std::move(link));
    adopted_.push_back(pair.get());
    pairs_[static_cast<std::size_t>(peer)] = std::move(pair);
  }

 private:
  std::vector<AdoptedPair*> adopted_;
};

class AdoptedContext final : public gloo::rendezvous::Context {
 public:
  AdoptedContext(std::shared_ptr<gloo::transport::Device> device,
                 std::shared_ptr<gloo::transport::Context> pairs)
      : gloo::rendezvous::Context(pairs->rank, pairs->size) {
    device_ = std::move(device);
    transportContext_ = std::move(pairs);
  }
};

}  // namespace

Mesh adopt(int rank, PeerLinks& links, const std::shared_ptr<gloo::transport::Device>& device) {
  const auto tcp_device = std::dynamic_pointer_cast<tcp::Device>(device);
  ensure(tcp_device != nullptr, "adopt: the device must be one of TCP", rank);
  const int world = static_cast<int>(links.size());
  const auto pairs = std::make_shared<AdoptedPairs>(tcp_device, rank, world);
  auto mesh = std::make_shared<AdoptedContext>(device, pairs);
  OnDeviceThread(*tcp_device, [&] {
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank) continue;
      pairs->adopt(peer, std::move(links[static_cast<std::size_t>(peer)][kData]));
    }
  });
  return mesh;
}

}  // namespace thinreduce

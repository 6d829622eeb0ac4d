#include "python/module/torch_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "python/module/message_order.h"
#include "python/module/thread_state.h"
#include "python/module/waiting_threads.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/process.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

// A peer that gives up, or a wait that fails on another thread, is explained at once, unless this
// machine is very busy.
constexpr Seconds kLongestExplanation{1};
// A wait that times out inside Gloo closes all connections before the peers can be told why. So
// this rank gives up first, and Gloo gets a later deadline, which never comes.
constexpr Seconds kGrace{60};
// The connection may break in the middle of a message of this size or more, see waiting_threads.h.
constexpr std::size_t kLongMessage = std::size_t{64} * 1024;
// Time between looks at the connections of peers that are waited for.
constexpr Seconds kBetweenLooks{1};

// Calls Python with the GIL; returns the first line of an exception's text, "" if there was none.
template <typename Work>
std::string call_python(Work&& work) {
  ThreadState::keep();
  const py::gil_scoped_acquire gil;
  try {
    work();
  } catch (py::error_already_set& error) {
    // The first line of PyTorch's text says it; the rest is a stack.
    auto text = py::str(error.value()).cast<std::string>();
    text = text.substr(0, text.find('\n'));
    return text.empty() ? "unknown" : text;
  }
  return "";
}

class TorchTransport final : public Transport {
 public:
  explicit TorchTransport(py::object messages)
      : rank_(messages.attr("rank").cast<int>()),
        size_(messages.attr("size").cast<int>()),
        messages_(std::make_unique<py::object>(std::move(messages))),
        order_(size_),
        watchdog_(std::make_unique<std::thread>([this] { watch(); })) {}
  ~TorchTransport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void abandon(const std::string& reason) noexcept override;

 private:
  friend class TorchOperation;

  struct Failure {
    ErrorCode code;
    std::string message;  // from this rank's point of view
    std::string notice;   // the same for the others
  };

  // A wait in progress.
  struct Wait {
    int peer;
    std::string operation;
    Clock::time_point since;
    Clock::time_point until;
    Seconds allowed;
    std::shared_ptr<DelegatedWait> elsewhere;  // if another thread makes it
  };

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override;
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override;

  // Gives up when the deadline of a wait passes, when a peer is lost in the middle of a message,
  // and after any other failure, so that no wait goes on.
  void watch();
  // Returns why to give up now, or none. `lock` is released in between.
  std::optional<Failure> look(std::unique_lock<std::mutex>& lock);
  // Notes a failure unless there was one, tells the peers of the first one, and ends all waits.
  void give_up(Failure failure);
  // Notes a failure unless there was one; returns the first.
  Failure note(Failure failure);
  std::optional<Failure> failure();
  void throw_if_failed();
  void begin_wait(const Wait& wait);
  void end_wait(const Wait& wait);
  // Returns the error for an operation that failed.
  Error explain(int peer, const std::string& operation, const std::string& what);
  // Returns what a peer said before it closed its connections.
  std::string last_word_of(int peer);
  template <typename Work>
  std::string call(Work&& work) {
    return call_python([&] { work(*messages_); });
  }

  const int rank_;
  const int size_;
  OwnedHere<py::object> messages_;
  MessageOrder order_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::set<const Wait*> waits_;
  Clock::time_point next_look_ = Clock::time_point::max();  // of the watchdog at the waits
  bool leaving_ = false;
  OwnedHere<WaitingThreads> waiting_threads_{std::make_unique<WaitingThreads>()};
  OwnedHere<std::thread> watchdog_;
};

// One message in flight. Destroying PyTorch's object of it cancels it.
class TorchOperation final : public Operation {
 public:
  using Way = MessageOrder::Way;

  TorchOperation(TorchTransport& transport, int peer, Channel channel, std::span<std::byte> message,
                 Way way)
      : transport_(transport),
        peer_(peer),
        bytes_(message.size()),
        verb_(way == Way::send ? "send" : "receive") {
    transport_.throw_if_failed();
    place_ = transport_.order_.start(peer, way, channel, bytes_ >= kLongMessage);
    const auto what = transport_.call([&](py::object& messages) {
      const auto memory = py::memoryview::from_memory(static_cast<void*>(message.data()),
                                                      static_cast<py::ssize_t>(bytes_));
      work_ = messages.attr(verb_)(peer_, static_cast<int>(channel), memory);
      wait_ = messages.attr("wait");
    });
    if (what.empty()) return;
    transport_.order_.forget(place_);
    throw transport_.explain(peer_, describe(), what);
  }
  ~TorchOperation() override {
    if (!done_) transport_.order_.forget(place_);
    if (!work_) return;
    const py::gil_scoped_acquire gil;
    work_ = py::object();
    wait_ = py::object();
  }
  TorchOperation(const TorchOperation&) = delete;
  TorchOperation& operator=(const TorchOperation&) = delete;

  void wait(const Deadline& deadline) override {
    if (done_) return;
    const bool may_be_forgotten = transport_.order_.may_be_forgotten(place_);
    const TorchTransport::Wait wait{
        .peer = peer_,
        .operation = describe(),
        .since = Clock::now(),
        .until = deadline.at,
        .allowed = deadline.allowed,
        .elsewhere = may_be_forgotten ? std::make_shared<DelegatedWait>() : nullptr};
    const double limit = Seconds(deadline.at - wait.since + kGrace).count();
    const auto what = [&] {
      const WaitsNow waits(transport_, wait);
      return wait.elsewhere ? wait_elsewhere(wait.elsewhere, limit)
                            : wait_here(wait_, work_, limit);
    }();
    done_ = what.empty();
    if (!done_) throw transport_.explain(peer_, describe(), what);
    transport_.order_.pass(place_);
  }

 private:
  [[nodiscard]] std::string describe() const {
    return fmt::format("{} of {} bytes", verb_, bytes_);
  }

  // The watchdog sees the wait until the end of this object.
  class WaitsNow {
   public:
    WaitsNow(TorchTransport& transport, const TorchTransport::Wait& wait)
        : transport_(transport), wait_(wait) {
      transport_.begin_wait(wait_);
    }
    ~WaitsNow() { transport_.end_wait(wait_); }
    WaitsNow(const WaitsNow&) = delete;
    WaitsNow& operator=(const WaitsNow&) = delete;

   private:
    TorchTransport& transport_;
    const TorchTransport::Wait& wait_;
  };

  // Releases both objects, because it has the GIL.
  static std::string wait_here(py::object& wait, py::object& work, double seconds) {
    return call_python([&] {
      const auto own = std::exchange(wait, py::object());
      const auto message = std::exchange(work, py::object());
      own(message, seconds);
    });
  }
  std::string wait_elsewhere(const std::shared_ptr<DelegatedWait>& job, double seconds) {
    struct Objects {
      py::object wait, work;
    };
    auto objects = std::make_shared<Objects>();  // not copied without the GIL
    objects->wait = std::move(wait_);
    objects->work = std::move(work_);
    try {
      transport_.waiting_threads_->run(
          [job, objects, seconds] { job->end(wait_here(objects->wait, objects->work, seconds)); });
    } catch (...) {
      // Cancels the message before its memory goes.
      const py::gil_scoped_acquire gil;
      objects->wait = py::object();
      objects->work = py::object();
      throw;
    }
    return job->result();
  }

  TorchTransport& transport_;
  const int peer_;
  const std::size_t bytes_;
  const char* const verb_;
  MessageOrder::Place place_{};
  py::object work_;
  py::object wait_;
  bool done_ = false;
};

TorchTransport::~TorchTransport() {
  if (!messages_.here()) return;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  const auto join = [&] {
    watchdog_->join();
    waiting_threads_->stop();
  };
  if (PyGILState_Check() != 0) {
    const py::gil_scoped_release free;  // the threads may need it to end
    join();
  } else {
    join();
  }
  const auto failed = failure();
  static_cast<void>(call([&](py::object& messages) {
    messages.attr("leave")(failed ? failed->notice : std::string());
  }));
  const py::gil_scoped_acquire gil;
  *messages_ = py::object();
}

void TorchTransport::abandon(const std::string& reason) noexcept {
  if (!messages_.here()) return;
  try {
    const auto text = fmt::format("rank {} gave up: {}", rank_, reason);
    give_up({ErrorCode::lost_peer, text, text});
  } catch (const std::exception&) {
    // Out of memory; the other ranks see the connections close.
  }
}

Pending TorchTransport::start_send(int peer, Channel channel, std::span<const std::byte> message) {
  // PyTorch has one kind of tensor for both directions; it only reads from that of a send.
  const std::span writable(const_cast<std::byte*>(message.data()), message.size());
  return std::make_unique<TorchOperation>(*this, peer, channel, writable, MessageOrder::Way::send);
}

Pending TorchTransport::start_receive(int peer, Channel channel, std::span<std::byte> message) {
  return std::make_unique<TorchOperation>(*this, peer, channel, message,
                                          MessageOrder::Way::receive);
}

TorchTransport::Failure TorchTransport::note(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
  return *failure_;
}

void TorchTransport::give_up(Failure failure) {
  const auto first = note(std::move(failure));
  static_cast<void>(call([&](py::object& messages) { messages.attr("give_up")(first.notice); }));
  // All connections are closed, so Gloo no longer uses the memory of these messages.
  const std::lock_guard lock(mutex_);
  for (const Wait* wait : waits_) {
    if (wait->elsewhere) wait->elsewhere->end("given up");
  }
}

void TorchTransport::begin_wait(const Wait& wait) {
  const std::lock_guard lock(mutex_);
  waits_.insert(&wait);
  if (wait.until < next_look_) changed_.notify_all();
}

void TorchTransport::end_wait(const Wait& wait) {
  const std::lock_guard lock(mutex_);
  waits_.erase(&wait);
}

void TorchTransport::watch() {
  std::unique_lock lock(mutex_);
  while (!leaving_) {
    if (failure_ || (!waits_.empty() && next_look_ <= Clock::now())) {
      if (auto reason = failure_ ? failure_ : look(lock)) {
        lock.unlock();
        give_up(std::move(*reason));
        return;
      }
    }
    if (waits_.empty()) {
      next_look_ = Clock::time_point::max();
      changed_.wait(lock);
    } else {
      // A wait is rarely as long, so the looks cost nothing.
      next_look_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(kBetweenLooks);
      for (const Wait* wait : waits_) next_look_ = std::min(next_look_, wait->until);
      changed_.wait_until(lock, next_look_);
    }
  }
}

std::optional<TorchTransport::Failure> TorchTransport::look(std::unique_lock<std::mutex>& lock) {
  const auto now = Clock::now();
  std::set<std::pair<int, std::string>> slow;  // peers that are waited for, and what for
  for (const Wait* wait : waits_) {
    if (wait->until <= now) {
      const auto reason = fmt::format(
          "no answer from rank {} within {:g} s ({}); rank {} is computing, stopped, unreachable, "
          "or itself waiting for such a rank; check it, or raise patience",
          wait->peer, wait->allowed.count(), wait->operation, wait->peer);
      return Failure{ErrorCode::timeout, fmt::format("rank {}: {}", rank_, reason),
                     fmt::format("rank {} gave up: {}", rank_, reason)};
    }
    if (now - wait->since >= kBetweenLooks && wait->elsewhere) {
      slow.emplace(wait->peer, wait->operation);
    }
  }
  lock.unlock();
  std::optional<Failure> found;
  for (const auto& [peer, operation] : slow) {
    const auto what = call([&](py::object& messages) { messages.attr("check_connection")(peer); });
    if (what.empty()) continue;
    auto word = last_word_of(peer);
    if (word.empty() || word == "left") {
      word = fmt::format("rank {}: lost rank {}: {} ({})", rank_, peer, what, operation);
    }
    found = Failure{ErrorCode::lost_peer, word, word};
    break;
  }
  lock.lock();
  return found;
}

std::optional<TorchTransport::Failure> TorchTransport::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void TorchTransport::throw_if_failed() {
  if (const auto failed = failure()) throw Error(failed->code, failed->message);
}

std::string TorchTransport::last_word_of(int peer) {
  std::string word;
  static_cast<void>(call([&](py::object& messages) {
    word = messages.attr("last_word_of")(peer).cast<std::string>();
  }));
  return word;
}

Error TorchTransport::explain(int peer, const std::string& operation, const std::string& what) {
  const std::string word = failure() ? "" : last_word_of(peer);
  if (word == "left") {
    return Error(ErrorCode::lost_peer,
                 fmt::format("rank {}: rank {} has left ({})", rank_, peer, operation));
  }
  if (!word.empty()) {
    const auto first = note({ErrorCode::lost_peer, word, word});
    return Error(first.code, first.message);
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLongestExplanation, [&] { return failure_.has_value(); });
  }
  const auto lost = fmt::format("rank {}: lost rank {}: {} ({})", rank_, peer, what, operation);
  const auto first = note({ErrorCode::lost_peer, lost, lost});
  return Error(first.code, first.message);
}

}  // namespace

std::unique_ptr<Transport> make_torch_transport(py::object messages) {
  return std::make_unique<TorchTransport>(std::move(messages));
}

}  // namespace thinreduce::python

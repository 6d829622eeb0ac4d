// A transport whose peers say what an input says. Every frame and every checksum around their bytes
// is right, so the bytes reach the code behind the checksums.
//
// The input is consumed in the order in which this rank waits for messages:
//   frame:     u16 length, then that many bytes of payload. 0xFFFE: the payload that this rank sent
//              last on the same line. 0xFFFF: a u64 length that is announced and not kept.
//   message without a frame: as many bytes as the receiver asks for; zeros after the input's end.
//   statement: u8 number of changes, modulo 8, then a u8 place and a u8 value for each; without
//              changes the peer states the same as this rank.
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tests/fuzz/fuzz.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce::fuzz {

inline constexpr std::uint16_t kEcho = 0xFFFE;
inline constexpr std::uint16_t kHuge = 0xFFFF;

inline Channel kind_of(Channel channel) {
  return static_cast<Channel>(static_cast<int>(channel) % 4);
}
inline int track_of(Channel channel) {
  return static_cast<int>(channel) / 4;
}

// Puts the checksums of a statement right.
inline void fix_statement(StatementBytes& bytes) {
  const std::span<std::byte> all(bytes);
  store_value(all, 48, checksum(std::span<const std::byte>(all.subspan(kFrameHeaderBytes))));
  store_value(all, 56, checksum(std::span<const std::byte>(all.first(56)), 0));
}

class ScriptedTransport final : public Transport {
 public:
  ScriptedTransport(int rank, int world, Input input, std::size_t most_bytes)
      : rank_(rank), world_(world), most_bytes_(most_bytes), input_(input) {}

  // Says that an exchange begins on track 0 whose messages have this identity.
  void begin(const FrameId& id) {
    const std::lock_guard lock(mutex_);
    begin(streams_[0], id);
  }
  [[nodiscard]] bool exhausted() const {
    const std::lock_guard lock(mutex_);
    return input_.left() == 0;
  }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return world_; }
  void abandon(const std::string& /*reason*/) noexcept override {}

 private:
  enum class Kind { header, payload, message, checksum, statement };
  struct Line;
  // The messages between this rank and all others on one track.
  struct Stream {
    FrameId id;
    Statement statement;        // that this rank sent last
    std::map<int, Line> lines;  // by peer
  };
  struct Receive;
  struct Line {
    std::deque<Bytes> payloads;  // announced by a header that was read
    std::uint64_t received = 0;  // messages numbered so far
    std::uint64_t sent = 0;
    Bytes last_payload;               // that this rank sent
    std::list<Receive*> open;         // numbered messages that nobody has waited for
    std::span<std::byte> checksum{};  // where that of the next message belongs
  };
  struct Done final : Operation {
    void wait(const Deadline& /*deadline*/) override {}
  };
  struct Receive final : Operation {
    Receive(ScriptedTransport& to, Stream& on, Line& line_, int from, Kind kind_,
            std::span<std::byte> memory_)
        : transport(to), stream(on), line(line_), peer(from), kind(kind_), memory(memory_) {}
    ~Receive() override {
      const std::lock_guard lock(transport.mutex_);
      line.open.remove(this);
    }
    void wait(const Deadline& /*deadline*/) override {
      const std::lock_guard lock(transport.mutex_);
      if (!std::exchange(filled, true)) transport.fill(*this);
      line.open.remove(this);
    }

    ScriptedTransport& transport;
    Stream& stream;
    Line& line;
    int peer;
    Kind kind;
    std::span<std::byte> memory;
    std::uint64_t number = 0;
    Bytes payload;
    std::span<std::byte> checksum{};
    bool filled = false;
  };

  static void begin(Stream& stream, const FrameId& id) {
    stream.id = id;
    for (auto& [peer, line] : stream.lines) {
      line.sent = line.received = 0;
      line.payloads.clear();
      // Receives may be posted before this rank shows what the exchange is.
      for (Receive* receive : line.open) receive->number = line.received++;
    }
  }

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    const std::lock_guard lock(mutex_);
    Stream& stream = streams_[track_of(channel)];
    Line& line = stream.lines[peer];
    if (kind_of(channel) == Channel::agreement && message.size() == kStatementBytes) {
      StatementBytes bytes{};
      std::copy(message.begin(), message.end(), bytes.begin());
      stream.statement = decode_statement(bytes, rank_);
      begin(stream, stream.statement.id);
      return std::make_unique<Done>();
    }
    if (kind_of(channel) == Channel::header && message.size() == kFrameHeaderBytes) {
      note_header(stream, line, message);
    } else if (kind_of(channel) == Channel::data) {
      line.last_payload = copy(message);
    }
    ++line.sent;
    return std::make_unique<Done>();
  }

  // A header with number 0 is the first message of an exchange.
  void note_header(Stream& stream, Line& line, std::span<const std::byte> message) const {
    try {
      const FrameId id = decode_header(message, rank_, 0).id;
      if (id != stream.id || line.sent > 0) begin(stream, id);
      line.last_payload.clear();
    } catch (const Error&) {
      // It has another number.
    }
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    const std::lock_guard lock(mutex_);
    expect(message.size() <= most_bytes_, "a receive is larger than a message may be");
    Stream& stream = streams_[track_of(channel)];
    Line& line = stream.lines[peer];
    const auto make = [&](Kind kind) {
      return std::make_unique<Receive>(*this, stream, line, peer, kind, message);
    };
    const auto numbered = [&](Kind kind) {
      auto receive = make(kind);
      receive->number = line.received++;
      line.open.push_back(receive.get());
      return receive;
    };
    switch (kind_of(channel)) {
      case Channel::agreement:
        return make(Kind::statement);
      case Channel::header:
        if (message.size() == kFrameHeaderBytes) return numbered(Kind::header);
        line.checksum = message;
        return make(Kind::checksum);
      default:
        break;
    }
    if (!line.payloads.empty() && line.payloads.front().size() == message.size()) {
      auto receive = make(Kind::payload);
      receive->payload = std::move(line.payloads.front());
      line.payloads.pop_front();
      return receive;
    }
    auto receive = numbered(Kind::message);
    receive->checksum = std::exchange(line.checksum, {});
    return receive;
  }

  void fill(Receive& receive) {
    switch (receive.kind) {
      case Kind::header:
        return fill_header(receive);
      case Kind::payload:
        std::copy(receive.payload.begin(), receive.payload.end(), receive.memory.begin());
        return;
      case Kind::message:
        return fill_message(receive);
      case Kind::statement:
        return fill_statement(receive);
      case Kind::checksum:
        return;  // filled together with its message
    }
  }

  void fill_header(Receive& receive) {
    const auto length = input_.value<std::uint16_t>();
    Bytes payload;
    if (length == kEcho) {
      payload = receive.line.last_payload;
    } else if (length != kHuge) {
      payload = copy(input_.take(length));
    }
    auto header = encode_header(receive.stream.id, receive.peer, payload);
    if (length == kHuge) store_value(std::span(header), 40, input_.value<std::uint64_t>());
    number_header(header, receive.number);
    std::copy(header.begin(), header.end(), receive.memory.begin());
    if (length != kHuge && !payload.empty()) receive.line.payloads.push_back(std::move(payload));
  }

  void fill_message(Receive& receive) {
    const bool apart = !receive.checksum.empty();
    if (!apart && receive.memory.size() < kMessageChecksumBytes) return;
    const std::size_t count = receive.memory.size() - (apart ? 0 : kMessageChecksumBytes);
    const auto body = receive.memory.first(count);
    std::fill(body.begin(), body.end(), std::byte{0});
    const auto bytes = input_.take(count);
    std::copy(bytes.begin(), bytes.end(), body.begin());
    const auto right = message_checksum(receive.stream.id, receive.peer, receive.number,
                                        checksum(std::span<const std::byte>(body)));
    if (apart) {
      store_value(receive.checksum, 0, right);
    } else {
      store_value(receive.memory, count, right);
    }
  }

  void fill_statement(Receive& receive) {
    if (receive.memory.size() != kStatementBytes) return;
    StatementBytes bytes = encode_statement(receive.stream.statement, receive.peer);
    const unsigned changes = input_.value<std::uint8_t>() % 8;
    for (unsigned i = 0; i < changes; ++i) {
      const auto place = input_.value<std::uint8_t>() % kStatementBytes;
      bytes[place] = static_cast<std::byte>(input_.value<std::uint8_t>());
    }
    if (changes > 0) fix_statement(bytes);
    std::copy(bytes.begin(), bytes.end(), receive.memory.begin());
  }

  int rank_;
  int world_;
  std::size_t most_bytes_;
  mutable std::mutex mutex_;
  Input input_;
  std::map<int, Stream> streams_;  // by track
};

// Passes messages on and writes what this rank received as an input of a ScriptedTransport.
class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

  [[nodiscard]] Bytes script() const {
    Bytes out;
    for (const Slot& slot : slots_) {
      if (slot.framed) put(out, static_cast<std::uint16_t>(slot.bytes.size()));
      put_bytes(out, slot.bytes);
    }
    return out;
  }

 private:
  struct Slot {
    bool framed = false;
    Bytes bytes;
  };
  struct Receive final : Operation {
    Receive(RecordingTransport& by, int from, Channel on, std::span<std::byte> into, Pending real)
        : transport(by), peer(from), channel(on), memory(into), inner(std::move(real)) {}
    void wait(const Deadline& deadline) override {
      inner->wait(deadline);
      transport.note(peer, channel, memory);
    }
    RecordingTransport& transport;
    int peer;
    Channel channel;
    std::span<std::byte> memory;
    Pending inner;
  };

  void note(int peer, Channel channel, std::span<const std::byte> got) {
    const std::lock_guard lock(mutex_);
    const auto line = std::pair(peer, track_of(channel));
    switch (kind_of(channel)) {
      case Channel::agreement:
        slots_.push_back({false, Bytes(1)});
        return;
      case Channel::header:
        if (got.size() != kFrameHeaderBytes) {
          apart_[line] = true;
          return;
        }
        slots_.push_back({true, {}});
        if (load_value<std::uint64_t>(got, 40) > 0) announced_[line].push_back(slots_.size() - 1);
        return;
      default:
        break;
    }
    auto& announced = announced_[line];
    if (!announced.empty()) {
      slots_[announced.front()].bytes = copy(got);
      announced.pop_front();
      return;
    }
    const bool apart = std::exchange(apart_[line], false);
    slots_.push_back({false, copy(got.first(got.size() - (apart ? 0 : kMessageChecksumBytes)))});
  }

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return std::make_unique<Receive>(*this, peer, channel, message,
                                     inner_->receive(peer, channel, message));
  }

  std::unique_ptr<Transport> inner_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::map<std::pair<int, int>, std::deque<std::size_t>> announced_;
  std::map<std::pair<int, int>, bool> apart_;
};

}  // namespace thinreduce::fuzz

// The tag is Poly1305 with a key per piece of a message (a block of ChaCha20), as in TLS 1.3: it is
// four times as fast as keyed BLAKE2b and needs no AES instructions of the CPU
// (bench/authenticate_bench.cc).
#include "thinreduce/transport/authenticate.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/proof.h"

namespace thinreduce {
namespace {

constexpr std::size_t kTagBytes = crypto_onetimeauth_BYTES;
constexpr std::size_t kLine = 64;  // bytes of a cache line
// A channel that no track uses, so that a rank without a secret never receives a proof.
constexpr auto kProofs = static_cast<Channel>(3);

unsigned char* bytes_of(std::byte* memory) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
  return reinterpret_cast<unsigned char*>(memory);
}

// Memory for messages with their tags. Fresh memory would cost more than the tag.
class Buffers {
 public:
  using Memory = std::vector<std::byte>;

  Memory take(std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      const auto fits = std::ranges::find_if(free_, [&](const Memory& one) {
        return one.size() >= size && one.size() <= 2 * size + kSmall;
      });
      if (fits != free_.end()) {
        std::swap(*fits, free_.back());
        Memory memory = std::move(free_.back());
        free_.pop_back();
        return memory;
      }
    }
    return Memory(size);
  }

  void give_back(Memory memory) {
    if (memory.size() > kLargest) return;
    const std::lock_guard lock(mutex_);
    if (free_.size() >= kMaxFree) free_.erase(free_.begin());
    free_.push_back(std::move(memory));
  }

 private:
  static constexpr std::size_t kSmall = 1024;
  static constexpr std::size_t kLargest = std::size_t{1} << 20;
  static constexpr std::size_t kMaxFree = 64;
  std::mutex mutex_;
  std::vector<Memory> free_;
};

// The messages of one channel, from one rank to another. Only one thread at a time uses it.
struct Stream {
  const unsigned char* key;  // of the session, for this sender and receiver
  Channel channel;
  std::uint64_t& pieces;  // so far
};

// Piece number `number` of a stream.
struct Place {
  const unsigned char* key;
  Channel channel;
  std::uint64_t number;
};

Place next_place(const Stream& stream) {
  return {stream.key, stream.channel, stream.pieces++};
}

std::array<unsigned char, crypto_onetimeauth_KEYBYTES> message_key(const Place& place) {
  std::array<unsigned char, crypto_stream_chacha20_ietf_NONCEBYTES> nonce{};
  nonce[0] = static_cast<unsigned char>(place.channel);
  std::memcpy(&nonce[4], &place.number, sizeof(place.number));
  std::array<unsigned char, crypto_onetimeauth_KEYBYTES> key;
  ::crypto_stream_chacha20_ietf(key.data(), key.size(), nonce.data(), place.key);
  return key;
}

// Calls visit(first byte, bytes) for the pieces of a message, each of which has a tag and travels
// by itself: while one is on the wire, the sender makes the tag of the next, and the receiver
// verifies that of the one before. Nothing hides the first tag and the last check, so these pieces
// are small.
template <typename Visit>
void for_pieces(std::size_t bytes, Visit&& visit) {
  constexpr std::size_t kWhole = 24 * 1024;  // up to this size a piece more costs what it hides
  constexpr std::array<std::size_t, 2> kEdges{8 * 1024, 32 * 1024};
  constexpr std::size_t kLargest = 256 * 1024;
  if (bytes <= kWhole) return visit(std::size_t{0}, bytes);
  std::size_t first = 0;
  std::size_t left = bytes;
  std::array<std::size_t, kEdges.size()> last{};  // pieces at the end, the last one first
  std::size_t edges = 0;
  for (; edges < kEdges.size() && left >= 2 * kEdges[edges]; ++edges) {
    visit(first, kEdges[edges]);
    first += kEdges[edges];
    left -= 2 * kEdges[edges];
    last[edges] = kEdges[edges];
  }
  const std::size_t middle = (left + kLargest - 1) / kLargest;
  for (std::size_t piece = 0; piece < middle; ++piece) {
    const std::size_t begin = left * piece / middle;
    visit(first + begin, left * (piece + 1) / middle - begin);
  }
  first += left;
  for (; edges > 0; --edges) {
    visit(first, last[edges - 1]);
    first += last[edges - 1];
  }
}

// A piece of a message in flight, with its tag behind it.
struct Piece {
  std::span<const std::byte> message;  // where it comes from or goes to
  Place place;
  Buffers::Memory memory;
  std::size_t at = 0;  // in the memory
  Pending pending;

  [[nodiscard]] std::span<std::byte> tagged() {
    return std::span(memory).subspan(at, message.size() + kTagBytes);
  }
};

// Returns how far into `memory` is a byte that is as far from the start of a cache line as `other`:
// some CPUs copy such memory ten times as fast.
std::size_t alike(const std::byte* memory, const std::byte* other) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
  const auto place = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); };
  return (place(other) - place(memory)) % kLine;
}

// The pieces of a message. Their memory goes back to the buffers.
class Pieces {
 public:
  explicit Pieces(Buffers& buffers) : buffers_(buffers) {}
  ~Pieces() {
    for (Piece& piece : pieces_) {
      piece.pending.reset();
      buffers_.give_back(std::move(piece.memory));
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  Piece& add(std::span<const std::byte> message, const Place& place) {
    Buffers::Memory memory = buffers_.take(message.size() + kTagBytes + kLine);
    const std::size_t at = alike(memory.data(), message.data());
    pieces_.push_back({message, place, std::move(memory), at, nullptr});
    return pieces_.back();
  }
  [[nodiscard]] std::vector<Piece>& all() { return pieces_; }

 private:
  Buffers& buffers_;
  std::vector<Piece> pieces_;
};

class TaggedSend final : public Operation {
 public:
  TaggedSend(Transport& inner, Buffers& buffers, int peer, Channel channel, const Stream& stream,
             std::span<const std::byte> message)
      : pieces_(buffers) {
    for_pieces(message.size(), [&](std::size_t first, std::size_t bytes) {
      Piece& piece = pieces_.add(message.subspan(first, bytes), next_place(stream));
      std::ranges::copy(piece.message, piece.tagged().begin());
      unsigned char* const memory = bytes_of(piece.tagged().data());
      ::crypto_onetimeauth(memory + bytes, memory, bytes, message_key(piece.place).data());
      piece.pending = inner.send(peer, channel, piece.tagged());
    });
  }

  void wait(const Deadline& deadline) override {
    for (const Piece& piece : pieces_.all()) piece.pending->wait(deadline);
  }

 private:
  Pieces pieces_;
};

class TaggedReceive final : public Operation {
 public:
  TaggedReceive(Transport& inner, Buffers& buffers, int peer, Channel channel, const Stream& stream,
                std::span<std::byte> message)
      : me_(inner.rank()), peer_(peer), message_(message), pieces_(buffers) {
    for_pieces(message.size(), [&](std::size_t first, std::size_t bytes) {
      Piece& piece = pieces_.add(message.subspan(first, bytes), next_place(stream));
      piece.pending = inner.receive(peer, channel, piece.tagged());
    });
  }

  void wait(const Deadline& deadline) override {
    std::size_t first = 0;
    for (Piece& piece : pieces_.all()) {
      piece.pending->wait(deadline);
      verify(piece);
      const std::size_t bytes = piece.message.size();
      std::ranges::copy(piece.tagged().first(bytes), message_.subspan(first, bytes).begin());
      first += bytes;
    }
  }

 private:
  void verify(Piece& piece) const {
    const unsigned char* const memory = bytes_of(piece.tagged().data());
    const std::size_t bytes = piece.message.size();
    if (::crypto_onetimeauth_verify(memory + bytes, memory, bytes,
                                    message_key(piece.place).data()) == 0) {
      return;
    }
    throw Error(
        ErrorCode::bad_frame,
        fmt::format("rank {}: message {} from rank {} on channel {} ({} bytes) does not "
                    "have its tag: it was altered, replayed, dropped or reordered "
                    "between the two ranks",
                    me_, piece.place.number, peer_, static_cast<int>(piece.place.channel), bytes));
  }

  int me_;
  int peer_;
  std::span<std::byte> message_;
  Pieces pieces_;
};

// The messages from one rank to another.
struct Direction {
  std::string key;
  std::array<std::uint64_t, 256> pieces{};  // so far, by channel

  [[nodiscard]] Stream stream(Channel channel) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
    const auto* const bytes = reinterpret_cast<const unsigned char*>(key.data());
    return {bytes, channel, pieces[static_cast<std::size_t>(channel)]};
  }
};

// The state that the transport and its tracks share.
struct Tagging {
  std::vector<Direction> out;  // by peer
  std::vector<Direction> in;
  Buffers buffers;
};

// The transport itself (track 0) or a track of it. A track sends over one of the inner transport,
// which may have a clock of its own.
class Authenticated final : public Transport {
 public:
  Authenticated(std::unique_ptr<Transport> inner, std::shared_ptr<Tagging> tagging, int track)
      : tagging_(std::move(tagging)), inner_(std::move(inner)), track_(track) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }
  [[nodiscard]] std::unique_ptr<Transport> open_track(int number) override {
    auto track = std::make_unique<Authenticated>(inner_->open_track(number), tagging_, number);
    track->count_in(*this);
    return track;
  }

  [[nodiscard]] Clock::time_point now() const override { return inner_->now(); }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> counted_time() const override {
    return inner_->counted_time();
  }
  void count_work(std::chrono::nanoseconds own, std::chrono::nanoseconds elapsed) override {
    inner_->count_work(own, elapsed);
  }
  Moment hand_over() override { return inner_->hand_over(); }
  void go_on_from(const Moment& moment) override { inner_->go_on_from(moment); }

 private:
  // Returns the channel by which a tag knows a message: tracks share the key.
  [[nodiscard]] Channel known_as(Channel channel) const { return on_track(track_, channel); }
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    Direction& out = tagging_->out[static_cast<std::size_t>(peer)];
    return std::make_unique<TaggedSend>(*inner_, tagging_->buffers, peer, channel,
                                        out.stream(known_as(channel)), message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    Direction& in = tagging_->in[static_cast<std::size_t>(peer)];
    return std::make_unique<TaggedReceive>(*inner_, tagging_->buffers, peer, channel,
                                           in.stream(known_as(channel)), message);
  }

  std::shared_ptr<Tagging> tagging_;
  std::unique_ptr<Transport> inner_;
  int track_;
};

// Sends every peer its part of `own`, and returns the parts of all peers, of the same size.
std::vector<std::string> exchange(Transport& transport, const std::vector<std::string>& own,
                                  const Deadline& deadline) {
  std::vector<std::string> all = own;
  std::vector<Pending> pending;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const auto at = static_cast<std::size_t>(peer);
    pending.push_back(transport.receive(peer, kProofs, std::as_writable_bytes(std::span(all[at]))));
    pending.push_back(transport.send(peer, kProofs, std::as_bytes(std::span(own[at]))));
  }
  for (const Pending& operation : pending) operation->wait(deadline);
  return all;
}

// Proves the secret to all peers and checks their proofs.
std::shared_ptr<Tagging> meet(Transport& transport, const Secret& secret,
                              const Deadline& deadline) {
  const auto world = static_cast<std::uint32_t>(transport.size());
  const auto me = static_cast<std::uint32_t>(transport.rank());
  std::vector<std::string> nonces;
  for (std::uint32_t peer = 0; peer < world; ++peer) nonces.push_back(new_nonce());
  const auto theirs = exchange(transport, nonces, deadline);
  const auto made = [&](std::string_view purpose, std::uint32_t from, std::uint32_t to) {
    const std::uint32_t peer = from == me ? to : from;
    const std::string& first = from == me ? nonces[peer] : theirs[peer];
    const std::string& second = from == me ? theirs[peer] : nonces[peer];
    return prove(secret, purpose, {from, to, world}, {first, second});
  };
  std::vector<std::string> proofs;
  for (std::uint32_t peer = 0; peer < world; ++peer) proofs.push_back(made("rank", me, peer));
  const auto answers = exchange(transport, proofs, deadline);
  auto keys = std::make_shared<Tagging>();
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    if (peer != me && !same_proof(answers[peer], made("rank", peer, me))) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {}: rank {} has another secret; {}", me, peer, kSameSecret));
    }
    keys->out.push_back({made("messages", me, peer), {}});
    keys->in.push_back({made("messages", peer, me), {}});
  }
  return keys;
}

}  // namespace

std::unique_ptr<Transport> authenticate(std::unique_ptr<Transport> inner, const Secret& secret,
                                        Seconds timeout) {
  if (!secret || inner->size() == 1) return inner;
  const auto failed = [&](const Error& error) {
    inner->abandon(error.what());
    return error;
  };
  try {
    auto keys = meet(*inner, secret, Deadline::after(timeout));
    return std::make_unique<Authenticated>(std::move(inner), std::move(keys), 0);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw failed(error);
    throw failed(Error(ErrorCode::timeout,
                       fmt::format("{}; rank {} has a secret and waits for proofs that the others "
                                   "know it: {}",
                                   error.what(), inner->rank(), kSameSecret)));
  }
}

}  // namespace thinreduce

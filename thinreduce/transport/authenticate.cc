// The tag is Poly1305 with a key per message (a block of ChaCha20), as in TLS 1.3: it is four times
// as fast as keyed BLAKE2b and needs no AES instructions of the CPU (bench/authenticate_bench.cc).
#include "thinreduce/transport/authenticate.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/proof.h"

namespace thinreduce {
namespace {

constexpr std::size_t kTagBytes = crypto_onetimeauth_BYTES;
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
    if (free_.size() >= kMost) free_.erase(free_.begin());
    free_.push_back(std::move(memory));
  }

 private:
  static constexpr std::size_t kSmall = 1024;
  static constexpr std::size_t kLargest = std::size_t{1} << 20;
  static constexpr std::size_t kMost = 32;
  std::mutex mutex_;
  std::vector<Memory> free_;
};

// Message number `number` on a channel, from one rank to another.
struct Place {
  const unsigned char* key;  // of the session, for this sender and receiver
  Channel channel;
  std::uint64_t number;
};

std::array<unsigned char, crypto_onetimeauth_KEYBYTES> message_key(const Place& place) {
  std::array<unsigned char, crypto_stream_chacha20_ietf_NONCEBYTES> nonce{};
  nonce[0] = static_cast<unsigned char>(place.channel);
  std::memcpy(&nonce[4], &place.number, sizeof(place.number));
  std::array<unsigned char, crypto_onetimeauth_KEYBYTES> key;
  ::crypto_stream_chacha20_ietf(key.data(), key.size(), nonce.data(), place.key);
  return key;
}

class TaggedSend final : public Operation {
 public:
  TaggedSend(Transport& inner, Buffers& buffers, int peer, const Place& place,
             std::span<const std::byte> message)
      : buffers_(buffers), memory_(buffers.take(message.size() + kTagBytes)) {
    std::ranges::copy(message, memory_.begin());
    unsigned char* const bytes = bytes_of(memory_.data());
    ::crypto_onetimeauth(bytes + message.size(), bytes, message.size(), message_key(place).data());
    sent_ = inner.send(peer, place.channel, std::span(memory_).first(message.size() + kTagBytes));
  }
  ~TaggedSend() override {
    sent_.reset();
    buffers_.give_back(std::move(memory_));
  }

  void wait(const Deadline& deadline) override { sent_->wait(deadline); }

 private:
  Buffers& buffers_;
  Buffers::Memory memory_;
  Pending sent_;
};

class TaggedReceive final : public Operation {
 public:
  TaggedReceive(Transport& inner, Buffers& buffers, int peer, const Place& place,
                std::span<std::byte> message)
      : me_(inner.rank()),
        peer_(peer),
        place_(place),
        message_(message),
        buffers_(buffers),
        memory_(buffers.take(message.size() + kTagBytes)),
        received_(inner.receive(peer, place.channel,
                                std::span(memory_).first(message.size() + kTagBytes))) {}
  ~TaggedReceive() override {
    received_.reset();
    buffers_.give_back(std::move(memory_));
  }

  void wait(const Deadline& deadline) override {
    received_->wait(deadline);
    const unsigned char* const bytes = bytes_of(memory_.data());
    if (::crypto_onetimeauth_verify(bytes + message_.size(), bytes, message_.size(),
                                    message_key(place_).data()) != 0) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("rank {}: message {} from rank {} on channel {} ({} bytes) does not "
                              "have its tag: it was altered, replayed, dropped or reordered "
                              "between the two ranks",
                              me_, place_.number, peer_, static_cast<int>(place_.channel),
                              message_.size()));
    }
    std::copy_n(memory_.begin(), message_.size(), message_.begin());
  }

 private:
  int me_;
  int peer_;
  Place place_;
  std::span<std::byte> message_;
  Buffers& buffers_;
  Buffers::Memory memory_;
  Pending received_;
};

class Authenticated final : public Transport {
 public:
  // What one rank sends to another. Only one thread at a time uses a channel.
  struct Direction {
    std::string key;
    std::array<std::uint64_t, 256> messages{};  // so far, by channel

    Place next(Channel channel) {
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
      const auto* const bytes = reinterpret_cast<const unsigned char*>(key.data());
      return {bytes, channel, messages[static_cast<std::size_t>(channel)]++};
    }
  };
  struct Keys {
    std::vector<Direction> out;  // by peer
    std::vector<Direction> in;
  };

  Authenticated(std::unique_ptr<Transport> inner, Keys keys)
      : inner_(std::move(inner)), keys_(std::move(keys)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] Clock::time_point now() const override { return inner_->now(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    const Place place = keys_.out[static_cast<std::size_t>(peer)].next(channel);
    return std::make_unique<TaggedSend>(*inner_, buffers_, peer, place, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    const Place place = keys_.in[static_cast<std::size_t>(peer)].next(channel);
    return std::make_unique<TaggedReceive>(*inner_, buffers_, peer, place, message);
  }

  Buffers buffers_;
  std::unique_ptr<Transport> inner_;
  Keys keys_;
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
Authenticated::Keys meet(Transport& transport, const Secret& secret, const Deadline& deadline) {
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
  Authenticated::Keys keys;
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    if (peer != me && !same_proof(answers[peer], made("rank", peer, me))) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {}: rank {} has another secret; {}", me, peer, kSameSecret));
    }
    keys.out.push_back({made("messages", me, peer), {}});
    keys.in.push_back({made("messages", peer, me), {}});
  }
  return keys;
}

}  // namespace

std::unique_ptr<Transport> authenticate(std::unique_ptr<Transport> inner, const Secret& secret,
                                        Seconds timeout) {
  if (!secret || inner->size() == 1) return inner;
  if (inner->counted_time()) {
    throw Error(ErrorCode::bad_input, "a simulated cluster takes no secret: leave it out");
  }
  const auto failed = [&](const Error& error) {
    inner->abandon(error.what());
    return error;
  };
  try {
    auto keys = meet(*inner, secret, Deadline::after(timeout));
    return std::make_unique<Authenticated>(std::move(inner), std::move(keys));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw failed(error);
    throw failed(Error(ErrorCode::timeout,
                       fmt::format("{}; rank {} has a secret and waits for proofs that the others "
                                   "know it: {}",
                                   error.what(), inner->rank(), kSameSecret)));
  }
}

}  // namespace thinreduce

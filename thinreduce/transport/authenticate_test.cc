// Ranks with a secret, and a man in the middle who alters, replays, swaps and drops messages.
#include "thinreduce/transport/authenticate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gloo_world.h"
#include "thinreduce/transport/proof.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::authenticate_test {
namespace {

using testing::HasSubstr;

const char* const kOne = "correct horse battery staple";
const char* const kOther = "correct horse battery stable";

using Bytes = std::vector<std::byte>;

// Runs each rank of a world on its own thread.
void run_ranks(int world, const std::function<void(std::unique_ptr<Transport>)>& body) {
  auto transports = connect_threads(world);
  std::vector<std::jthread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&] { body(std::move(transport)); });
  }
}

// An attack on one message, chosen by its number among those on Channel::data.
struct Attack {
  enum Kind { none, flip, replay, swap, drop } kind = none;
  std::size_t number = 0;
  std::size_t bit = 0;
};

// Delivers other messages than those it was given. A message is sent when the next one comes, so
// that the two can be swapped.
class ManInTheMiddle final : public Transport {
 public:
  ManInTheMiddle(std::unique_ptr<Transport> inner, const Attack& attack)
      : inner_(std::move(inner)), attack_(attack) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  class Sent final : public Operation {
   public:
    void wait(const Deadline& deadline) override { inner->wait(deadline); }
    Bytes message;
    Pending inner;
  };

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    if (channel != Channel::data) return inner_->send(peer, channel, message);
    const std::size_t number = seen_.size();
    seen_.emplace_back(message.begin(), message.end());
    auto sent = std::make_unique<Sent>();
    sent->message = seen_.back();
    if (attack_.kind == Attack::flip && number == attack_.number) {
      sent->message.at(attack_.bit / 8) ^= static_cast<std::byte>(1U << (attack_.bit % 8));
    }
    if (attack_.kind == Attack::replay && number == attack_.number) {
      sent->message = seen_.at(number - 1);
    }
    if (attack_.kind == Attack::drop && number == attack_.number)
      return std::make_unique<Nothing>();
    if (attack_.kind == Attack::swap && number == attack_.number) {
      held_ = std::move(sent);
      return std::make_unique<Nothing>();
    }
    sent->inner = inner_->send(peer, channel, sent->message);
    if (held_ && !held_->inner) held_->inner = inner_->send(peer, channel, held_->message);
    return sent;
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  class Nothing final : public Operation {
   public:
    void wait(const Deadline& /*deadline*/) override {}
  };

  std::unique_ptr<Transport> inner_;
  Attack attack_;
  std::vector<Bytes> seen_;
  std::unique_ptr<Sent> held_;
};

constexpr std::size_t kMessages = 5;
constexpr std::size_t kBytes = 1000;

// Rank 1 sends equal messages to rank 0 past the man in the middle. Returns how many rank 0
// believed, and its error.
std::pair<std::size_t, std::optional<Error>> under(const Attack& attack,
                                                   std::size_t bytes = kBytes) {
  std::size_t believed = 0;
  std::optional<Error> error;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    const Secret secret = Secret::from_text(kOne);
    const bool sends = transport->rank() == 1;
    if (sends) transport = std::make_unique<ManInTheMiddle>(std::move(transport), attack);
    const auto own = authenticate(std::move(transport), secret, Seconds(60));
    const Bytes message = pattern(bytes, 3);
    if (sends) {
      std::vector<Pending> pending;
      for (std::size_t i = 0; i < kMessages; ++i) {
        pending.push_back(own->send(0, Channel::data, message));
      }
      // Rank 0 says when it has seen enough.
      std::byte done{};
      own->receive(0, Channel::header, std::span(&done, 1))->wait(soon());
      return;
    }
    try {
      for (std::size_t i = 0; i < kMessages; ++i) {
        Bytes got(bytes);
        own->receive(1, Channel::data, got)->wait(soon());
        EXPECT_EQ(got, message);
        ++believed;
      }
    } catch (const Error& caught) {
      error = caught;
    }
    const std::byte done{};
    own->send(1, Channel::header, std::span(&done, 1))->wait(soon());
  });
  return {believed, error};
}

TEST(Authenticate, EveryMessageArrivesOnEveryChannelAndTrack) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    const auto own = authenticate(std::move(transport), Secret::from_text(kOne), Seconds(60));
    const auto track = own->open_track(2);
    const int peer = (own->rank() + 1) % 3;
    const int from = (own->rank() + 2) % 3;
    for (Transport* const way : {own.get(), track.get()}) {
      for (const Channel channel : {Channel::data, Channel::header, Channel::agreement}) {
        for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{96},
                                       std::size_t{65'537}, std::size_t{3'000'000}}) {
          const Bytes message = pattern(size, own->rank());
          Bytes got(size);
          auto received = way->receive(from, channel, got);
          auto sent = way->send(peer, channel, message);
          sent->wait(soon());
          received->wait(soon());
          EXPECT_EQ(got, pattern(size, from));
        }
      }
    }
    EXPECT_EQ(own->total_traffic().messages_sent, 30U);
  });
}

TEST(Authenticate, AFlippedBitIsSeenWhereverItIs) {
  EXPECT_EQ(under({}).first, kMessages);
  // The 16 bytes behind the message are its tag.
  for (std::size_t bit = 0; bit < 8 * (kBytes + 16); bit += 61) {
    const auto [believed, error] = under({Attack::flip, 2, bit});
    EXPECT_EQ(believed, 2U);
    ASSERT_TRUE(error) << bit;
    EXPECT_EQ(error->code(), ErrorCode::bad_frame);
    EXPECT_THAT(error->what(), HasSubstr("rank 0: message 2 from rank 1 on channel 0"));
  }
}

// A long message travels in pieces: 8, 32, 32 and 8 KiB.
TEST(Authenticate, AnAlteredOrMovedPieceIsSeen) {
  constexpr std::size_t kLong = 80 * 1024;
  EXPECT_EQ(under({}, kLong).first, kMessages);
  for (const std::size_t piece : {4, 5, 6, 7}) {
    const auto [believed, error] = under({Attack::flip, piece, 8 * 8000}, kLong);
    EXPECT_EQ(believed, 1U);
    ASSERT_TRUE(error) << piece;
    EXPECT_EQ(error->code(), ErrorCode::bad_frame);
  }
  // The pieces of 32 KiB follow one another, and so do those of 8 KiB.
  for (const auto& attack :
       {Attack{Attack::swap, 5, 0}, Attack{Attack::replay, 6, 0}, Attack{Attack::swap, 3, 0}}) {
    const auto [believed, error] = under(attack, kLong);
    EXPECT_EQ(believed, attack.number / 4);
    ASSERT_TRUE(error) << attack.number;
    EXPECT_EQ(error->code(), ErrorCode::bad_frame);
  }
}

TEST(Authenticate, AMessageInAnotherPlaceIsSeen) {
  for (const auto kind : {Attack::replay, Attack::swap, Attack::drop}) {
    const auto [believed, error] = under({kind, 2, 0});
    EXPECT_EQ(believed, 2U);
    ASSERT_TRUE(error) << kind;
    EXPECT_EQ(error->code(), ErrorCode::bad_frame);
    EXPECT_THAT(error->what(), HasSubstr("from rank 1 on channel 0"));
    EXPECT_THAT(error->what(), HasSubstr("altered, replayed, dropped or reordered"));
  }
}

// A transport that keeps what it sends, so that one session's messages can be sent in another.
TEST(Authenticate, MessagesOfAnotherSessionAreSeen) {
  std::vector<Bytes> tagged(2);
  for (std::size_t session = 0; session < 2; ++session) {
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      // Rank 0 reads the raw bytes below the tag.
      Transport* const raw = transport.get();
      const auto own = authenticate(std::move(transport), Secret::from_text(kOne), Seconds(60));
      if (own->rank() == 1) {
        own->send(0, Channel::data, pattern(40, 1))->wait(soon());
      } else {
        tagged[session].resize(56);
        raw->receive(1, Channel::data, tagged[session])->wait(soon());
      }
    });
  }
  EXPECT_TRUE(std::equal(tagged[0].begin(), tagged[0].begin() + 40, tagged[1].begin()));
  EXPECT_FALSE(std::equal(tagged[0].begin() + 40, tagged[0].end(), tagged[1].begin() + 40));
}

TEST(Authenticate, ARankWithAnotherSecretIsNamedByAll) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    const Secret secret = Secret::from_text(rank == 1 ? kOther : kOne);
    const Error error =
        error_of([&] { (void)authenticate(std::move(transport), secret, Seconds(60)); });
    if (error.code() == ErrorCode::mismatch) {
      EXPECT_THAT(error.what(), HasSubstr("has another secret; give all ranks the same "
                                          "THINREDUCE_SECRET or THINREDUCE_SECRET_FILE"));
    } else {
      // Another rank found it first, and told this one.
      EXPECT_EQ(error.code(), ErrorCode::lost_peer);
      EXPECT_THAT(error.what(), HasSubstr("has another secret"));
    }
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("rank 1"), HasSubstr("rank 0")));
  });
}

TEST(Authenticate, ARankWithoutASecretIsToldWhy) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == 0) {
      const Error error = error_of(
          [&] { (void)authenticate(std::move(transport), Secret::from_text(kOne), Seconds(0.2)); });
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has a secret and waits for proofs"));
    } else {
      const auto own = authenticate(std::move(transport), Secret());
      std::byte byte{};
      const Error error =
          error_of([&] { own->receive(0, Channel::agreement, std::span(&byte, 1))->wait(soon()); });
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has a secret"));
    }
  });
}

// Without a secret nothing is sent, so that the bytes of such a world stay as they are.
TEST(Authenticate, WithoutASecretTheTransportIsTheSame) {
  auto ranks = connect_threads(2);
  Transport* const before = ranks[0].get();
  const auto after = authenticate(std::move(ranks[0]), Secret());
  EXPECT_EQ(after.get(), before);
  EXPECT_EQ(after->total_traffic().messages_sent, 0U);
}

// A message of a simulated cluster takes the time of its bytes and tags, on a track as well.
TEST(Authenticate, KeepsAVirtualClock) {
  auto ranks =
      simulate(connect_threads(2), {.links = ClusterLinks::parse("1gbit,2ms"),
                                    .cpu_time = [] { return std::chrono::nanoseconds(0); }});
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([inner = std::move(rank)]() mutable {
      const auto own = authenticate(std::move(inner), Secret::from_text(kOne), Seconds(60));
      EXPECT_TRUE(own->counted_time());
      const auto track = own->open_track(3);
      for (Transport* const way : {own.get(), track.get()}) {
        way->go_on_from(own->hand_over());
        const auto start = way->now();
        const Bytes message = pattern(1'000'000, own->rank());
        Bytes got(message.size());
        const int peer = 1 - own->rank();
        auto received = way->receive(peer, Channel::data, got);
        way->send(peer, Channel::data, message)->wait(soon());
        received->wait(soon());
        EXPECT_EQ(got, pattern(message.size(), peer));
        const Seconds took = way->now() - start;
        EXPECT_NEAR(took.count(), 0.010, 0.00001);  // 8 ms of bytes and 2 ms
        own->go_on_from(way->hand_over());
      }
      EXPECT_EQ(own->total_traffic().messages_sent, 2U);
    });
  }
}

TEST(Authenticate, WorksBelowAnEmulatedLink) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    auto own = authenticate(std::move(transport), Secret::from_text(kOne), Seconds(60));
    own = throttle(std::move(own), Link::parse("1gbit"), Seconds(60));
    const int peer = 1 - own->rank();
    Bytes got(500);
    auto received = own->receive(peer, Channel::data, got);
    auto sent = own->send(peer, Channel::data, pattern(500, own->rank()));
    sent->wait(soon());
    received->wait(soon());
    EXPECT_EQ(got, pattern(500, peer));
  });
}

TEST(Proof, DependsOnEveryPart) {
  const Secret secret = Secret::from_text(kOne);
  const std::string proof = prove(secret, "a", {1, 2}, {"xy", "z"});
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_TRUE(same_proof(proof, prove(secret, "a", {1, 2}, {"xy", "z"})));
  EXPECT_FALSE(same_proof(proof, prove(Secret::from_text(kOther), "a", {1, 2}, {"xy", "z"})));
  EXPECT_FALSE(same_proof(proof, prove(secret, "b", {1, 2}, {"xy", "z"})));
  EXPECT_FALSE(same_proof(proof, prove(secret, "a", {2, 1}, {"xy", "z"})));
  EXPECT_FALSE(same_proof(proof, prove(secret, "a", {1, 2}, {"x", "yz"})));
  EXPECT_FALSE(same_proof(proof, proof.substr(1)));
  EXPECT_NE(new_nonce(), new_nonce());
}

class SecretFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "thinreduce_secret_" + std::to_string(::getpid());
    write(std::string(kOne) + "\n", 0600);
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    ::unsetenv("THINREDUCE_SECRET");
    ::unsetenv("THINREDUCE_SECRET_FILE");
  }
  void write(const std::string& text, ::mode_t mode) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  std::string path_;
};

TEST_F(SecretFile, HoldsTheSameSecretAsTheText) {
  EXPECT_EQ(Secret::from_file(path_).key(), Secret::from_text(kOne).key());
  write(std::string(kOne) + " \r\n\n", 0400);
  EXPECT_EQ(Secret::from_file(path_).key(), Secret::from_text(kOne).key());
}

TEST_F(SecretFile, MustBeTheOwnersAlone) {
  for (const ::mode_t mode : {0640U, 0604U, 0660U, 0610U, 0602U}) {
    write(kOne, mode);
    const Error error = error_of([&] { (void)Secret::from_file(path_); });
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("run chmod 600 " + path_));
  }
}

TEST_F(SecretFile, MustHoldASecret) {
  write("short\n", 0600);
  EXPECT_THAT(error_of([&] { (void)Secret::from_file(path_); }).what(),
              HasSubstr("secret file " + path_ + ": the secret has 5 bytes"));
  write(std::string(5000, 'x'), 0600);
  EXPECT_THAT(error_of([&] { (void)Secret::from_file(path_); }).what(),
              HasSubstr("more than 4096 bytes"));
  const Error error = error_of([&] { (void)Secret::from_file(path_ + ".none"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr(path_ + ".none"));
}

TEST_F(SecretFile, ComesFromTheEnvironment) {
  EXPECT_FALSE(Secret::from_environment());
  ::setenv("THINREDUCE_SECRET_FILE", path_.c_str(), 1);
  EXPECT_EQ(Secret::from_environment().key(), Secret::from_text(kOne).key());
  ::setenv("THINREDUCE_SECRET", kOther, 1);
  EXPECT_THAT(error_of([] { (void)Secret::from_environment(); }).what(),
              HasSubstr("THINREDUCE_SECRET and THINREDUCE_SECRET_FILE are both set"));
  ::setenv("THINREDUCE_SECRET_FILE", "", 1);
  EXPECT_EQ(Secret::from_environment().key(), Secret::from_text(kOther).key());
}

}  // namespace
}  // namespace thinreduce::authenticate_test

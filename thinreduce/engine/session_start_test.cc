// Errors at the start of a session: wrong options, options that differ between ranks, altered
// bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/faulty_transport.h"
#include "tests/ranks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/settings.h"
#include "thinreduce/error.h"
#include "thinreduce/version.h"

namespace thinreduce::session_start_test {
namespace {

using namespace std::chrono_literals;

TEST(SessionStart, DifferentSpecsAreNamedOnAllRanks) {
  const auto thrown = try_ranks(3, [](std::unique_ptr<Transport> transport) {
    const bool odd = transport->rank() == 1;
    Session session(std::move(transport), {.spec = odd ? "topk:density=0.5" : "topk"});
  });
  for (const auto& one : thrown) {
    const auto text = error_text(one, ErrorCode::mismatch);
    EXPECT_NE(text.find("topk:chunk=auto,collective=auto,decay=1,density=0.1"), std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 1 runs 'topk:chunk=auto,collective=auto,decay=1,density=0.5"),
              std::string::npos)
        << text;
  }
}

// Payloads may differ between versions, so a rank of another version must not be taken for a peer.
TEST(SessionStart, AnotherVersionIsNamedOnAllRanks) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == 0) {
      Session session(std::move(transport), {.spec = "topk"});
      return;
    }
    const SessionOptions options{.spec = "topk"};
    std::string text = start_text(settings_text(Spec::parse("topk"), options), options);
    const std::string own = fmt::format("version={}", version());
    ASSERT_NE(text.find(own), std::string::npos) << text;
    text.replace(text.find(own), own.size(), "version=0.0.1");
    Exchange exchange(*transport, options.limits(), {.bucket = kNoBucket});
    require_equal(gather_texts(exchange, text));
  });
  for (const auto& one : thrown) {
    const auto text = error_text(one, ErrorCode::mismatch);
    EXPECT_NE(text.find(fmt::format("version={} on rank 0, version=0.0.1 on rank 1; start all "
                                    "ranks with the same version",
                                    version())),
              std::string::npos)
        << text;
  }
}

TEST(SessionStart, UnknownSpecsAreRefusedWithWhatExists) {
  const auto refused = [](const std::string& spec) {
    auto thrown = try_ranks(1, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = spec});
    });
    return error_text(thrown[0], ErrorCode::bad_spec);
  };
  EXPECT_NE(refused("topq").find("fp32, bf16, "), std::string::npos);
  EXPECT_NE(refused("topk:k=3").find("density"), std::string::npos);
  EXPECT_NE(refused("topk:density=2").find("got '2'"), std::string::npos);
}

// An update with momentum inside, given to an optimizer with momentum, would be a silent mistake.
TEST(SessionStart, MomentumInsideMustBeAcknowledged) {
  const auto open = [](const SessionOptions& options) {
    auto ranks = connect_threads(1);
    Session session(std::move(ranks[0]), options);
  };
  const auto text =
      thrown_text(ErrorCode::bad_spec, [&] { open({.spec = "sketch:momentum=0.8"}); });
  EXPECT_NE(text.find("momentum_inside_ok"), std::string::npos) << text;
  EXPECT_NE(text.find("sketch:momentum=0"), std::string::npos) << text;
  EXPECT_NO_THROW(open({.spec = "sketch:momentum=0.8", .momentum_inside_ok = true}));
  EXPECT_NO_THROW(open({.spec = "sketch"}));
  EXPECT_NO_THROW(open({.spec = "powersgd"}));
}

TEST(SessionStart, TimesThatMakeNoSenseAreRefusedAndForeverIsAllowed) {
  const auto open = [](Seconds timeout, Seconds patience) {
    auto ranks = connect_threads(1);
    const Session session(std::move(ranks[0]), {.timeout = timeout, .patience = patience});
  };
  const Seconds nan(std::numeric_limits<double>::quiet_NaN());
  const Seconds forever(std::numeric_limits<double>::infinity());
  for (const Seconds bad : {nan, Seconds(-1)}) {
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { open(bad, 1s); }).find("timeout is"),
              std::string::npos);
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { open(1s, bad); }).find("patience is"),
              std::string::npos);
  }
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.timeout = forever, .patience = forever});
    std::vector<float> values(5000);
    if (session.rank() == 1) std::this_thread::sleep_for(50ms);
    EXPECT_NO_THROW(session.reduce(0, values));
  });
}

// Settings and the measurement of the link.
TEST(SessionStart, AnAlteredMessageWhileASessionStartsIsNamedOnAllRanks) {
  const auto start = [](std::uint64_t number) {
    return try_ranks(3, [number](std::unique_ptr<Transport> transport) {
      const bool alters = transport->rank() == 1 && number > 0;
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transport));
      if (alters) faulty->arm({FaultKind::flipped_bit, number - 1, 77});
      const Session session(faulty, {.spec = "dqsg"});
    });
  };
  for (const auto& thrown : start(0)) ASSERT_FALSE(thrown);
  for (std::uint64_t number = 1; number <= 12; ++number) {
    SCOPED_TRACE(number);
    int refused = 0;
    for (const auto& thrown : start(number)) {
      ASSERT_TRUE(thrown);
      try {
        std::rethrow_exception(thrown);
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.find("from rank 1") != text.npos || text.find("of rank 1") != text.npos)
            << text;
        if (error.code() == ErrorCode::bad_frame) ++refused;
      }
    }
    EXPECT_EQ(refused, 1);
  }
}

// Flips a bit of every message that it sends.
class Flipping final : public Transport {
 public:
  explicit Flipping(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    auto& sent = sent_.emplace_back(message.begin(), message.end());
    if (!sent.empty()) sent.back() ^= std::byte{1};
    return inner_->send(peer, channel, sent);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::list<std::vector<std::byte>> sent_;
  std::unique_ptr<Transport> inner_;
};

TEST(SessionStart, AlteredBytesAtTheStartSayWhatToDo) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == 1) transport = std::make_unique<Flipping>(std::move(transport));
    const Session session(std::move(transport), {.patience = 60s});
  });
  const auto text = error_text(thrown[0], ErrorCode::bad_frame);
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("bytes were altered in transit: check the network"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace thinreduce::session_start_test

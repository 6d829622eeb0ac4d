// Laws of every method with owners: a part or an answer whose frame is right and whose bytes are
// not is refused with an error that names its sender, or gives finite means; the gradient stays in
// the residual.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/test_world.h"
#include "thinreduce/collective/owner.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::hostile_owner_test {
namespace {

using Bytes = std::vector<std::byte>;
// Changes the bytes of a message after its prefix.
using Alter = std::function<void(Bytes& body)>;
enum class Kind { part, answer };

// Sends one message of the chosen kind with other bytes, in a frame that is right.
class HostileTransport final : public Transport {
 public:
  HostileTransport(std::unique_ptr<Transport> inner, const FrameId& id, Kind kind, Alter alter)
      : inner_(std::move(inner)), id_(id), kind_(kind), alter_(std::move(alter)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  struct Done final : Operation {
    void wait(const Deadline& /*deadline*/) override {}
  };
  struct Sent final : Operation {
    void wait(const Deadline& deadline) override {
      pending_header->wait(deadline);
      pending_payload->wait(deadline);
    }
    FrameHeaderBytes header{};
    Bytes payload;
    Pending pending_header;
    Pending pending_payload;
  };

  // A header is sent together with its payload, from which it is made anew.
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    if (channel == Channel::header) return std::make_unique<Done>();
    auto sent = std::make_unique<Sent>();
    sent->payload.assign(message.begin(), message.end());
    const bool is_answer = sent->payload[0] == std::byte{1};
    if (is_answer == (kind_ == Kind::answer)) {
      Bytes body(sent->payload.begin() + kOwnerPrefixBytes, sent->payload.end());
      alter_(body);
      sent->payload.resize(kOwnerPrefixBytes);
      sent->payload.insert(sent->payload.end(), body.begin(), body.end());
    }
    sent->header = encode_header(id_, rank(), sent->payload);
    number_header(sent->header, frames_++);
    sent->pending_header = inner_->send(peer, Channel::header, sent->header);
    sent->pending_payload = inner_->send(peer, Channel::data, sent->payload);
    return sent;
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  FrameId id_;
  Kind kind_;
  Alter alter_;
  std::uint64_t frames_ = 0;
};

constexpr std::size_t kElements = 4099;

// Reduces one step of two ranks, of which rank 1 is hostile. Returns the error of rank 0, empty if
// it accepted finite means.
std::string error_of(const std::string& text, Kind kind, const Alter& alter) {
  const Spec spec = Spec::parse(text);
  const FrameId id{.method = spec.info->wire_id, .elements = kElements};
  auto transports = connect_threads(2);
  transports[1] = std::make_unique<HostileTransport>(std::move(transports[1]), id, kind, alter);
  const auto gradients = normal_gradients(2, kElements, 1);
  const auto moments = random_moments(2, kElements, 1);
  std::string error;
  const auto reduce = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const BucketLayout layout = shapeless(kElements);
    const auto method = spec.make({.layout = layout, .rank = rank, .world = 2});
    auto values = gradients[r];
    Exchange exchange(*transports[r], Seconds(20), id);
    const bool reads = spec.info->second_moment;
    try {
      method->reduce({layout, values, reads ? std::span(moments[r]) : std::span<const float>()},
                     exchange);
      EXPECT_EQ(kernels::first_nonfinite(values), values.size());
    } catch (const Error& thrown) {
      transports[r]->abandon(thrown.what());
      if (rank == 1) return;
      EXPECT_EQ(thrown.code(), ErrorCode::bad_frame) << thrown.what();
      error = thrown.what();
      MemoryArchive archive(0, 2);
      method->state(archive);
      if (!archive.has_summed) return;
      std::vector<float> kept(kElements);
      method->add_residual(kept);
      for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(kept[i], gradients[0][i], 1e-5) << i;
    }
  };
  std::jthread peer([&] { reduce(1); });
  reduce(0);
  peer.join();
  return error;
}

std::vector<std::string> owner_specs() {
  std::vector<std::string> specs{"bf16"};
  for (const std::string& spec : law_specs()) {
    if (spec.ends_with("collective=owner")) specs.push_back(spec);
  }
  return specs;
}

class HostileOwner : public testing::TestWithParam<std::string> {};

TEST_P(HostileOwner, WrongLengthsAreRefused) {
  for (const Kind kind : {Kind::part, Kind::answer}) {
    SCOPED_TRACE(kind == Kind::part ? "part" : "answer");
    const std::vector<Alter> wrong{
        [](Bytes& body) { body.resize(body.size() - 1); },
        [](Bytes& body) { body.resize(body.size() / 2); },
        [](Bytes& body) { body.resize(1); },
        [](Bytes& body) { body.push_back({}); },
        [](Bytes& body) { body.resize(std::size_t{1} << 20); },
    };
    for (const Alter& alter : wrong) {
      EXPECT_THAT(error_of(GetParam(), kind, alter), testing::HasSubstr("rank 1"));
    }
    EXPECT_EQ(error_of(GetParam(), kind, [](Bytes&) {}), "");
  }
}

TEST_P(HostileOwner, AlteredBytesAreRefusedOrFinite) {
  std::mt19937 random(1);
  for (int round = 0; round < (kSanitized ? 20 : 100); ++round) {
    const Kind kind = round % 2 == 0 ? Kind::part : Kind::answer;
    const std::string error = error_of(GetParam(), kind, [&](Bytes& body) {
      // Most fields are at the start.
      for (unsigned i = 0; i <= round % 3U; ++i) {
        const std::size_t end =
            round % 4 < 2 ? std::min<std::size_t>(64, body.size()) : body.size();
        body[random() % end] ^= static_cast<std::byte>(1U << random() % 8);
      }
    });
    // A bf16 of Inf may be an honest overflow: then the error names the element.
    EXPECT_THAT(error, testing::AnyOf("", testing::HasSubstr("rank 1"),
                                      testing::HasSubstr("a rank sent corrupt data")));
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, HostileOwner, testing::ValuesIn(owner_specs()),
                         [](const auto& spec) { return test_name(spec.param); });

}  // namespace
}  // namespace thinreduce::hostile_owner_test

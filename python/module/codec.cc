// Encoding without a network: what rank 0 of two puts on the wire when the other rank has zeros,
// and what that other rank makes of it. So every method is tried as it really runs, rounds and all.
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "python/module/bindings.h"
#include "python/module/floats_at.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

// Messages one after another: u8 channel, u64 length, bytes.
void append(std::string& log, Channel channel, std::span<const std::byte> message) {
  const std::uint64_t length = message.size();
  log.push_back(static_cast<char>(channel));
  log.append(reinterpret_cast<const char*>(&length), sizeof length);
  log.append(reinterpret_cast<const char*>(message.data()), message.size());
}

// Passes everything on and notes what is sent.
class Recorder final : public Transport {
 public:
  Recorder(std::unique_ptr<Transport> inner, std::string& log)
      : inner_(std::move(inner)), log_(log) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    append(log_, channel, message);
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  std::string& log_;
};

class Nothing final : public Operation {
 public:
  void wait(const Deadline& /*deadline*/) override {}
};

// Rank 1 of two, whose peer says what was recorded and does not listen.
class Player final : public Transport {
 public:
  explicit Player(std::string_view log) {
    ByteReader reader(std::as_bytes(std::span(log)), "the encoded array");
    while (reader.left() > 0) {
      const auto channel = reader.value<std::uint8_t>();
      messages_[channel].push_back(reader.take(reader.value<std::uint64_t>()));
    }
  }
  [[nodiscard]] int rank() const override { return 1; }
  [[nodiscard]] int size() const override { return 2; }
  void abandon(const std::string& /*reason*/) noexcept override {}

 private:
  Pending start_send(int /*peer*/, Channel /*channel*/,
                     std::span<const std::byte> /*message*/) override {
    return std::make_unique<Nothing>();
  }
  Pending start_receive(int /*peer*/, Channel channel, std::span<std::byte> message) override {
    auto& queue = messages_[static_cast<std::uint8_t>(channel)];
    if (queue.empty() || queue.front().size() != message.size()) {
      throw Error(ErrorCode::bad_frame, "a message is missing or of another size");
    }
    if (!message.empty()) std::memcpy(message.data(), queue.front().data(), message.size());
    queue.pop_front();
    return std::make_unique<Nothing>();
  }

  std::map<std::uint8_t, std::deque<std::span<const std::byte>>> messages_;
};

// Both sides must let sums travel in the same way, so neither measures how fast this machine is.
constexpr Link kLink{.bytes_per_second = 1e9, .latency = Seconds{1e-5}};

SessionOptions options_for(const std::string& spec, std::uint64_t seed) {
  return {.spec = spec,
          .min_elements = 0,
          .check_replicas_every = 0,
          .seed = seed,
          .link = kLink,
          .momentum_inside_ok = true};
}

std::pair<py::bytes, std::uint64_t> encode(const BucketLayout& layout, std::uintptr_t address,
                                           std::uint64_t seed) {
  std::string log;
  std::uint64_t payload = 0;
  {
    const py::gil_scoped_release free;
    const auto values = floats_at(address, layout.elements);
    std::vector<float> own(values.begin(), values.end());
    std::vector<float> zeros(layout.elements);
    auto ranks = connect_threads(2);
    std::thread other([&] {
      try {
        Session session(std::move(ranks[1]), options_for(layout.spec, seed));
        session.submit(session.add_bucket(layout), zeros).get();
      } catch (const Error&) {
        // The same error ends rank 0.
      }
    });
    std::exception_ptr thrown;
    try {
      Session session(std::make_unique<Recorder>(std::move(ranks[0]), log),
                      options_for(layout.spec, seed));
      payload = session.submit(session.add_bucket(layout), own).get().payload_bytes;
    } catch (...) {
      thrown = std::current_exception();
      ranks[0].reset();
    }
    other.join();
    if (thrown) std::rethrow_exception(thrown);
  }
  return {py::bytes(log), payload};
}

void decode(const BucketLayout& layout, const std::string& log, std::uintptr_t address,
            std::uint64_t seed) {
  const auto values = floats_at(address, layout.elements);
  try {
    Session session(std::make_unique<Player>(log), options_for(layout.spec, seed));
    session.submit(session.add_bucket(layout), values).get();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_frame && error.code() != ErrorCode::mismatch) throw;
    throw Error(ErrorCode::bad_frame,
                "the encoded array is cut, altered, or of another spec or size; give decode() what "
                "encode() returned");
  }
  for (float& value : values) value *= 2;  // the mean with the other rank's zeros
}

}  // namespace

void bind_codec(py::module_& module) {
  module.def("encode", &encode, py::arg("layout"), py::arg("address"), py::arg("seed"));
  module.def("decode", &decode, py::arg("layout"), py::arg("messages"), py::arg("address"),
             py::arg("seed"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace thinreduce::python

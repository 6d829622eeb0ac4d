#include "thinreduce/collective/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "thinreduce/collective/framed.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

enum class Kind : std::uint32_t { part = 0, answer = 1 };

// The first bytes of a message, which say what it holds.
struct Prefix {
  Kind kind = Kind::part;
  Range range;

  void append_to(std::vector<std::byte>& out) const {
    const std::size_t at = out.size();
    out.resize(at + kOwnerPrefixBytes);
    store_value(std::span(out), at, static_cast<std::uint32_t>(kind));
    store_value(std::span(out), at + 4, static_cast<std::uint32_t>(range.size()));
    store_value(std::span(out), at + 8, static_cast<std::uint64_t>(range.begin));
  }

  // Returns the bytes after the prefix. Throws if `message` has another prefix.
  [[nodiscard]] std::span<const std::byte> check(const Exchange& exchange, int peer,
                                                 std::span<const std::byte> message) const {
    std::vector<std::byte> expected;
    append_to(expected);
    if (message.size() < kOwnerPrefixBytes ||
        !std::equal(expected.begin(), expected.end(), message.begin())) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("rank {} sent {} for bucket {}, step {}, expected {}", peer,
                              describe(message), exchange.id().bucket, exchange.id().step,
                              describe(expected)));
    }
    return message.subspan(kOwnerPrefixBytes);
  }

 private:
  static std::string describe(std::span<const std::byte> message) {
    if (message.size() < kOwnerPrefixBytes) {
      return fmt::format("a message of {} bytes", message.size());
    }
    const auto kind = load_value<std::uint32_t>(message, 0);
    return fmt::format("{} of {} units from unit {} on",
                       kind == 0 ? "a part" : (kind == 1 ? "an answer" : "an unknown message"),
                       load_value<std::uint32_t>(message, 4),
                       load_value<std::uint64_t>(message, 8));
  }
};

class OwnerReduction {
 public:
  OwnerReduction(Exchange& exchange, OwnerCodec& codec, SpareBuffers& spare,
                 const OwnerOptions& options)
      : exchange_(exchange), codec_(codec), spare_(spare), incoming_(world()) {
    const std::size_t longest = (codec.units() + world() - 1) / world();
    const std::size_t elements =
        codec.any_pieces() ? elements_per_piece(exchange.link, options) : options.piece_elements;
    const std::size_t units = std::max<std::size_t>(1, elements / codec.unit_elements());
    pieces_ = (longest + units - 1) / units;
    ahead_ = std::clamp<std::size_t>(options.ahead, 1, pieces_);
    parts_ = std::vector<Outgoing>(slots() * world());
    answers_ = std::vector<Outgoing>(slots());
  }

  // In turn t a rank sends its parts of piece t and the answer of piece t - ahead. A turn consumes
  // all that the peers sent `ahead` turns earlier, peer by peer, so that decoding overlaps with the
  // wire even if there is only one piece.
  void run() {
    for (std::size_t turn = 0; turn < pieces_ + 2 * ahead_; ++turn) {
      post(turn);
      if (turn < pieces_) send_parts(turn);
      if (turn >= ahead_) answer(turn - ahead_);
      if (turn >= 2 * ahead_) decode(turn - 2 * ahead_);
    }
    for (auto& message : parts_) finish(message);
    for (auto& message : answers_) finish(message);
    count_payload();
  }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    FrameHeaderBytes header{};
    std::vector<FramedSend> sends;
  };
  struct Incoming {
    Prefix prefix;
    std::unique_ptr<FramedReceive> receive;
    bool open = false;  // its header has arrived
  };
  struct Expected {
    int rank = 0;
    Range range;
  };

  [[nodiscard]] std::size_t world() const { return static_cast<std::size_t>(exchange_.size()); }
  // Returns the number of messages of one kind and peer that this rank keeps in flight.
  [[nodiscard]] std::size_t slots() const { return ahead_ + 1; }
  [[nodiscard]] Range piece(int owner, std::size_t index) const {
    if (index >= pieces_) return {};
    return cut(owned_range(codec_.units(), exchange_.size(), owner), pieces_, index);
  }
  [[nodiscard]] Range own_piece(std::size_t index) const { return piece(exchange_.rank(), index); }

  // Call visit(rank) for all other ranks: in the order in which this rank sends to them, and in the
  // order in which their messages arrive on busy links.
  template <typename Visit>
  void for_receivers(Visit&& visit) const {
    for (int distance = 1; distance < exchange_.size(); ++distance) {
      visit((exchange_.rank() + distance) % exchange_.size());
    }
  }
  template <typename Visit>
  void for_senders(Visit&& visit) const {
    for (int distance = exchange_.size() - 1; distance > 0; --distance) {
      visit((exchange_.rank() + distance) % exchange_.size());
    }
  }

  [[nodiscard]] std::deque<Incoming>& from(int rank) {
    return incoming_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::vector<std::byte> take_spare() {
    if (spare_.empty()) return {};
    std::vector<std::byte> memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }

  // Posts the receives of all that the peers send in `turn`.
  void post(std::size_t turn) {
    for_senders([&](int rank) {
      post_one(rank, {Kind::part, own_piece(turn)});
      if (turn >= ahead_) post_one(rank, {Kind::answer, piece(rank, turn - ahead_)});
    });
  }
  void post_one(int rank, const Prefix& prefix) {
    if (prefix.range.size() == 0) return;
    const std::size_t limit =
        kOwnerPrefixBytes + (prefix.kind == Kind::part ? codec_.max_part_bytes(prefix.range)
                                                       : codec_.max_answer_bytes(prefix.range));
    const PayloadLength length(limit, codec_.fixed_lengths());
    from(rank).push_back(
        {prefix, std::make_unique<FramedReceive>(exchange_, rank, length, take_spare())});
  }

  // Waits for the header of a message of a rank, and for those of all before it.
  void open(int rank, Kind kind, Range range) {
    for (Incoming& message : from(rank)) {
      if (!message.open) message.receive->wait_header(exchange_);
      message.open = true;
      if (message.prefix.kind == kind && message.prefix.range.begin == range.begin) break;
    }
  }

  // Calls take(rank, range) for the messages of one kind and piece, in the order in which they
  // arrive. The headers of the next ones are awaited before: the receive of a payload can be posted
  // only then, and some transports transfer nothing before that.
  template <typename Take>
  void take_all(Kind kind, std::size_t index, Take&& take) {
    constexpr std::size_t kOpen = 4;
    expected_.clear();
    expect(kind, index);
    const std::size_t now = expected_.size();
    expect(kind, index + 1);
    std::size_t opened = 0;
    for (std::size_t i = 0; i < now; ++i) {
      for (; opened < std::min(expected_.size(), i + kOpen); ++opened) {
        open(expected_[opened].rank, kind, expected_[opened].range);
      }
      take(expected_[i].rank, expected_[i].range);
    }
  }
  void expect(Kind kind, std::size_t index) {
    for_senders([&](int rank) {
      const Range range = kind == Kind::part ? own_piece(index) : piece(rank, index);
      if (range.size() > 0) expected_.push_back({rank, range});
    });
  }

  // Passes the next message of `rank` to `use`, without its prefix.
  template <typename Use>
  void consume(int rank, Use&& use) {
    Incoming& message = from(rank).front();
    message.receive->wait_payload(exchange_);
    exchange_.timed(Stage::decode, [&] {
      use(message.prefix.check(exchange_, rank, message.receive->payload()));
    });
    spare_.push_back(message.receive->release());
    from(rank).pop_front();
  }

  // Writes a message with `append`, which must keep its limit.
  template <typename Append>
  void write(Outgoing& message, const Prefix& prefix, std::size_t limit, Append&& append) {
    finish(message);
    message.bytes = take_spare();
    exchange_.timed(Stage::encode, [&] {
      message.bytes.clear();
      prefix.append_to(message.bytes);
      append(message.bytes);
      ensure(message.bytes.size() <= kOwnerPrefixBytes + limit, "a message must keep its limit",
             message.bytes.size(), limit);
      message.header = encode_header(exchange_.id(), exchange_.rank(), message.bytes);
    });
  }
  // Waits until a message is sent and takes its memory back.
  void finish(Outgoing& message) {
    for (auto& send : message.sends) send.wait(exchange_);
    if (message.bytes.capacity() > 0) spare_.push_back(std::exchange(message.bytes, {}));
    message.sends.clear();
  }

  void send_parts(std::size_t index) {
    for_receivers([&](int owner) {
      const Range range = piece(owner, index);
      if (range.size() == 0) return;
      Outgoing& part = parts_[index % slots() * world() + static_cast<std::size_t>(owner)];
      write(part, {Kind::part, range}, codec_.max_part_bytes(range),
            [&](std::vector<std::byte>& out) { codec_.encode_part(range, out); });
      part.sends.emplace_back(exchange_, owner, part.header, part.bytes);
      part_bytes_ += kFrameHeaderBytes + part.bytes.size();
    });
  }

  // Adds all parts of a piece that this rank owns, and sends and decodes the answer.
  void answer(std::size_t index) {
    const Range range = own_piece(index);
    if (range.size() == 0) return;
    exchange_.timed(Stage::decode, [&] { codec_.begin_sum(range); });
    take_all(Kind::part, index, [&](int rank, Range) {
      consume(rank, [&](auto bytes) { codec_.add_part(range, rank, bytes); });
    });
    Outgoing& answer = answers_[index % slots()];
    write(answer, {Kind::answer, range}, codec_.max_answer_bytes(range),
          [&](std::vector<std::byte>& out) { codec_.encode_answer(range, out); });
    for_receivers(
        [&](int rank) { answer.sends.emplace_back(exchange_, rank, answer.header, answer.bytes); });
    answer_bytes_ += kFrameHeaderBytes + answer.bytes.size();
    exchange_.keep_original_if_alone();
    exchange_.timed(Stage::decode, [&] {
      codec_.decode_answer(range, exchange_.rank(),
                           std::span(answer.bytes).subspan(kOwnerPrefixBytes));
    });
  }

  // Decodes the answers of all other owners.
  void decode(std::size_t index) {
    take_all(Kind::answer, index, [&](int owner, Range range) {
      consume(owner, [&](auto bytes) {
        answer_bytes_ += kFrameHeaderBytes + kOwnerPrefixBytes + bytes.size();
        codec_.decode_answer(range, owner, bytes);
      });
    });
  }

  // Counts one copy of the bucket, averaged over parts and answers. This rank's own part did not
  // travel; it counts as the average of the others.
  void count_payload() {
    const std::uint64_t parts =
        world() == 1 ? answer_bytes_ : part_bytes_ * world() / (world() - 1);
    exchange_.payload_bytes += (parts + answer_bytes_) / 2;
  }

  Exchange& exchange_;
  OwnerCodec& codec_;
  SpareBuffers& spare_;
  std::size_t pieces_ = 0;  // per range
  std::size_t ahead_ = 1;
  std::vector<Outgoing> parts_;                 // by slot and owner
  std::vector<Outgoing> answers_;               // by slot
  std::vector<std::deque<Incoming>> incoming_;  // by rank, in the order in which they are sent
  std::vector<Expected> expected_;              // messages of one kind, in the order of arrival
  std::uint64_t part_bytes_ = 0;
  std::uint64_t answer_bytes_ = 0;
};

}  // namespace

std::size_t elements_per_piece(const Link& link, const OwnerOptions& options) {
  // Over TCP through token buckets of 20 and 100 Mbit, 4 ranks, pieces below this gained no more.
  constexpr std::size_t kFewest = std::size_t{16} * 1024;
  const bool is_unlimited = link.bytes_per_second == 0;
  if (is_unlimited || options.piece_elements <= kFewest) return options.piece_elements;
  // Longer latencies need larger pieces, so that those in flight last for a round trip.
  constexpr double kShortLatency = 3e-3;
  const double longer = std::max(1.0, link.latency.count() / kShortLatency);
  const double elements = static_cast<double>(options.piece_elements) * longer *
                          (link.bytes_per_second / kLocalNetwork.bytes_per_second);
  // Compared as numbers first: the product may be too large for an integer.
  if (!(elements < static_cast<double>(options.piece_elements))) return options.piece_elements;
  return std::max(kFewest, static_cast<std::size_t>(elements));
}

void owner_reduce(Exchange& exchange, OwnerCodec& codec, const OwnerOptions& options) {
  if (codec.units() == 0) return;
  SpareBuffers unused;
  SpareBuffers& spare = exchange.spare == nullptr ? unused : *exchange.spare;
  OwnerReduction(exchange, codec, spare, options).run();
}

}  // namespace thinreduce

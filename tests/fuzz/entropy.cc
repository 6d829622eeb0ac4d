// The entropy coder: bytes that it did not write are refused or give symbols of the alphabet, and
// all symbols survive a round trip.
#include "thinreduce/wire/entropy.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace thinreduce::fuzz {
namespace {

constexpr std::size_t kMaxSymbols = 5000;

void decode(Input input, std::uint32_t alphabet) {
  const std::size_t count = input.value<std::uint16_t>() % kMaxSymbols;
  const Bytes bytes = copy(input.rest());
  std::vector<std::uint8_t> symbols(count);
  EntropyCoder coder(alphabet);
  const bool good = accepts([&] { coder.decode(bytes, "fuzzed bytes", symbols); });
  if (!good) return;
  expect(std::ranges::all_of(symbols, [&](std::uint8_t s) { return s < alphabet; }),
         "symbols are of the alphabet");
}

void round_trip(Input input, std::uint32_t alphabet) {
  std::vector<std::uint8_t> symbols;
  for (const std::byte byte : input.rest()) {
    symbols.push_back(static_cast<std::uint8_t>(static_cast<unsigned>(byte) % alphabet));
  }
  EntropyCoder coder(alphabet);
  Bytes coded;
  const std::size_t limit = 2 * symbols.size() + 2000;
  if (!coder.encode(symbols, limit, coded)) return;
  expect(coded.size() < limit, "coded bytes keep their limit");
  std::vector<std::uint8_t> again(symbols.size());
  coder.decode(coded, "own bytes", again);
  expect(again == symbols, "symbols survive a round trip");
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const std::uint32_t alphabet : {2U, 3U, 7U, 15U, 16U, 200U, 256U}) {
    for (const std::size_t count : {1, 40, 300, 1001}) {
      std::vector<std::uint8_t> symbols(count);
      for (std::size_t i = 0; i < count; ++i) {
        symbols[i] = static_cast<std::uint8_t>(i * i % 11 % alphabet);
      }
      Bytes seed{std::byte{0}, static_cast<std::byte>(alphabet - 2)};
      put(seed, static_cast<std::uint16_t>(count));
      EntropyCoder coder(alphabet);
      if (coder.encode(symbols, 4000, seed)) all.push_back(seed);
      Bytes trip{std::byte{1}, static_cast<std::byte>(alphabet - 2)};
      put_bytes(trip, std::as_bytes(std::span(symbols)));
      all.push_back(trip);
    }
  }
  return all;
}

void run(Input input) {
  const bool decodes = input.value<std::uint8_t>() % 4 != 1;
  const std::uint32_t alphabet = 2 + input.value<std::uint8_t>() % 255U;
  if (decodes) {
    decode(input, alphabet);
  } else {
    round_trip(input, alphabet);
  }
}

}  // namespace thinreduce::fuzz

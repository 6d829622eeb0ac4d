// Statements of peers with checksums put right, and the verdict on them.
#include "thinreduce/engine/agreement.h"

#include <cmath>
#include <optional>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scripted_transport.h"

namespace thinreduce::fuzz {
namespace {

Statement own_statement() {
  return {.id = {.method = 4, .bucket = 1, .step = 5, .elements = 100, .layout_hash = 77},
          .figures = {0.5F, 0.25F, 0.125F, 0.0625F},
          .fingerprint = 123,
          .last_result = 9};
}

BucketLayout layout() {
  BucketLayout layout;
  layout.id = 1;
  layout.add("weight", {10, 8});
  layout.add("bias", {20});
  return layout;
}

}  // namespace

void run(Input input) {
  const bool fixes = input.value<std::uint8_t>() % 4 != 0;
  std::vector<Statement> statements{own_statement()};
  while (input.left() > 0 && statements.size() < 4) {
    const auto rank = static_cast<int>(statements.size());
    StatementBytes bytes = encode_statement(own_statement(), rank);
    const auto given = input.take(kStatementBytes);
    std::copy(given.begin(), given.end(), bytes.begin());
    if (fixes) {
      store_value(std::span(bytes), 0, kFrameMagic);
      store_value(std::span(bytes), 4, kFrameVersion);
      store_value(std::span(bytes), 12, static_cast<std::uint32_t>(rank));
      store_value(std::span(bytes), 40, std::uint64_t{kStatementBytes - kFrameHeaderBytes});
      fix_statement(bytes);
    }
    std::optional<Statement> statement;
    if (!accepts([&] { statement = decode_statement(bytes, rank); })) return;
    expect(std::isfinite(statement->figures.ready) && std::isfinite(statement->figures.wait),
           "figures are finite");
    statements.push_back(*statement);
  }
  accepts([&] { check_agreement(statements, layout()); });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint32_t numbers = 0; numbers <= static_cast<std::uint32_t>(Numbers::foreign_handle);
       ++numbers) {
    Bytes seed{std::byte{1}};
    for (int rank = 1; rank < 3; ++rank) {
      Statement statement = own_statement();
      statement.numbers = static_cast<Numbers>(rank == 2 ? numbers : 0);
      statement.first_bad = 60;
      put_bytes(seed, encode_statement(statement, rank));
    }
    all.push_back(seed);
  }
  return all;
}

}  // namespace thinreduce::fuzz

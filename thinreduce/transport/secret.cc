#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/proof.h"
#include "thinreduce/transport/socket.h"

namespace thinreduce {
namespace {

constexpr const char* kText = "THINREDUCE_SECRET";
constexpr const char* kFile = "THINREDUCE_SECRET_FILE";
// Of a file; a secret that is longer is a mistake.
constexpr std::size_t kMaxBytes = 4096;

void start_sodium() {
  static const bool started = ::sodium_init() >= 0;
  if (!started)
    throw Error(ErrorCode::unavailable, "libsodium could not start its random number generator");
}

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Error unreadable(const std::string& path, int error) {
  return Error(ErrorCode::unavailable,
               fmt::format("can't read the secret file {}: {}", path, describe_errno(error)));
}

}  // namespace

Secret Secret::from_text(std::string_view text) {
  if (text.size() < kMinBytes) {
    throw Error(ErrorCode::bad_input,
                fmt::format("the secret has {} bytes; it must have at least {} random ones: "
                            "`openssl rand -hex 32` makes such a secret",
                            text.size(), kMinBytes));
  }
  start_sodium();
  constexpr std::string_view kPurpose = "thinreduce secret 1";
  Secret secret;
  secret.given_ = true;
  // NOLINTBEGIN(cppcoreguidelines-pro-type-reinterpret-cast)
  ::crypto_generichash(secret.key_.data(), secret.key_.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size());
  // NOLINTEND(cppcoreguidelines-pro-type-reinterpret-cast)
  return secret;
}

Secret Secret::from_file(const std::string& path) {
  const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || ::fstat(file.fd(), &about) != 0) throw unreadable(path, errno);
  // The mode of the open file: it can't be replaced between the check and the read.
  if (S_ISREG(about.st_mode) && (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorCode::bad_input,
                fmt::format("the secret file {} has mode {:o}, so other users may read or change "
                            "it; run chmod 600 {}",
                            path, about.st_mode & 0777, path));
  }
  std::array<char, kMaxBytes + 1> bytes{};
  std::size_t size = 0;
  while (size < bytes.size()) {
    const auto got = ::read(file.fd(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxBytes) {
    throw Error(ErrorCode::bad_input, fmt::format("the secret file {} has more than {} bytes; is "
                                                  "it another file?",
                                                  path, kMaxBytes));
  }
  std::string_view text(bytes.data(), size);
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  try {
    const Secret secret = from_text(text);
    ::sodium_memzero(bytes.data(), bytes.size());
    return secret;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("secret file {}: {}", path, error.what()));
  }
}

Secret Secret::from_environment() {
  const std::string text = thinreduce::from_environment(kText);
  const std::string file = thinreduce::from_environment(kFile);
  if (!text.empty() && !file.empty()) {
    throw Error(ErrorCode::bad_input,
                fmt::format("{} and {} are both set; unset one of them", kText, kFile));
  }
  if (!file.empty()) return from_file(file);
  return text.empty() ? Secret() : from_text(text);
}

std::string new_nonce() {
  start_sodium();
  std::string nonce(kNonceBytes, '\0');
  ::randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string prove(const Secret& secret, std::string_view purpose,
                  std::initializer_list<std::uint32_t> numbers,
                  std::initializer_list<std::string_view> texts) {
  ensure(static_cast<bool>(secret), "a proof must have a secret");
  crypto_generichash_state state;
  ::crypto_generichash_init(&state, secret.key().data(), secret.key().size(), kProofBytes);
  const auto add = [&](const void* bytes, std::size_t size) {
    ::crypto_generichash_update(&state, static_cast<const unsigned char*>(bytes), size);
  };
  // Lengths come first, so that different parts never give the same bytes.
  const auto add_number = [&](std::uint32_t number) { add(&number, sizeof(number)); };
  const auto add_text = [&](std::string_view text) {
    add_number(static_cast<std::uint32_t>(text.size()));
    add(text.data(), text.size());
  };
  add_text(purpose);
  add_number(static_cast<std::uint32_t>(numbers.size()));
  for (const std::uint32_t number : numbers) add_number(number);
  for (const std::string_view text : texts) add_text(text);
  std::string proof(kProofBytes, '\0');
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
  ::crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(proof.data()), proof.size());
  return proof;
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace thinreduce

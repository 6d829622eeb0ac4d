// A secret that all ranks share: ranks prove to one another that they know it, and every message
// carries a tag that only they can make.
//
// Long messages travel in pieces with a tag each. The tag covers the piece, its sender and
// receiver, its channel and its number on that channel, so a message that was altered, replayed,
// dropped or put in another place is an error that names its sender. Nothing is encrypted.
// docs/security.md says what this protects from.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "thinreduce/export.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

class THINREDUCE_EXPORT Secret {
 public:
  static constexpr std::size_t kMinBytes = 16;
  using Key = std::array<unsigned char, 32>;

  // No secret.
  Secret() = default;
  // Throws Error{bad_input} for fewer than kMinBytes bytes.
  static Secret from_text(std::string_view text);
  // The text is the file's without white space at its end. Throws Error{bad_input} if group or
  // others may read the file, Error{unavailable} if it can't be read.
  static Secret from_file(const std::string& path);
  // Returns the secret of THINREDUCE_SECRET or of the file THINREDUCE_SECRET_FILE; none if both are
  // unset or empty. Throws Error{bad_input} if both are set, otherwise as the functions above.
  static Secret from_environment();

  // Returns whether there is one.
  explicit operator bool() const { return given_; }
  // Returns a hash of the text.
  [[nodiscard]] const Key& key() const { return key_; }

 private:
  bool given_ = false;
  Key key_{};
};

// Advice of the errors about a secret.
inline constexpr const char* kSameSecret =
    "give all ranks the same THINREDUCE_SECRET or THINREDUCE_SECRET_FILE";

// Wraps `inner`, or returns it as it is if there is no secret. All ranks must call it: each proves
// to every peer that it knows the secret, with two short messages. connect_gloo() does so by
// itself. Throws Error{mismatch} that names a rank with another secret, Error{timeout} if a rank
// does not answer; then every other rank that waits gets an error with the same text.
[[nodiscard]] THINREDUCE_EXPORT std::unique_ptr<Transport> authenticate(
    std::unique_ptr<Transport> inner, const Secret& secret, Seconds timeout = Seconds{30});

}  // namespace thinreduce

// SPDX-License-Identifier: Apache-2.0
// Digests of bytes that come piece by piece: SHA-2, SHA-1 and MD5 by OpenSSL, and the three CRCs
// that object stores use.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace inferd::base {

enum class DigestKind : std::uint8_t { kSha256, kSha1, kMd5, kCrc32, kCrc32c, kCrc64Nvme };

/// "sha256", "crc64nvme", ...
std::string_view DigestName(DigestKind kind);

/// One running digest. Not thread-safe.
class Digest {
 public:
  /// Refuses a kind that the OpenSSL of this machine does not have (MD5 in FIPS mode).
  static Result<Digest> Make(DigestKind kind);

  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void Update(std::span<const std::byte> data);
  /// The digest's bytes, CRCs with the most significant first; the next Update begins a new one.
  std::string Finish();

 private:
  struct State;
  explicit Digest(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Lower-case hex.
std::string ToHex(std::string_view bytes);
/// Standard base64 with padding.
std::string ToBase64(std::string_view bytes);

}  // namespace inferd::base

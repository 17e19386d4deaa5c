// SPDX-License-Identifier: Apache-2.0
// The cluster secret: what every process of one server shares. From it come the proof that opens a
// control stream and the certificates of TLS between hosts, so that both sides are authenticated
// before a message is parsed.
#pragma once

#include "inferd/result.h"

#include <string>
#include <string_view>

namespace inferd::rpc {

/// 32 random bytes as hex, for a server whose processes all run on one host.
std::string RandomSecret();

/// From a file (surrounding white space ignored). At least 16 bytes, or kInvalidArgument.
Result<std::string> ReadSecretFile(const std::string& path);
Result<> CheckSecret(std::string_view secret);

/// Metadata value that proves knowledge of the secret: hex HMAC-SHA256(secret, "inferd control
/// v1").
std::string ControlProof(std::string_view secret);
/// Constant-time comparison of fixed-length digests of the two.
bool SameProof(std::string_view a, std::string_view b);

/// A certificate authority and one certificate, both of a P-256 key derived from the secret
/// (HKDF-SHA256). Whoever knows the secret has the key; nobody else can finish a mutual TLS
/// handshake. The host name inside is kTlsName.
struct TlsIdentity {
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;
};
inline constexpr char kTlsName[] = "inferd.internal";
Result<TlsIdentity> DeriveTlsIdentity(std::string_view secret);

}  // namespace inferd::rpc

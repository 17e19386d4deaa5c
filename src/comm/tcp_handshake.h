// SPDX-License-Identifier: Apache-2.0
// Who may join: a mutual proof of the shared secret before anything else is read from a connection.
//
//   accepting side                              connecting side
//   greeting: magic, nonce            40 bytes →
//                                               ← hello: group, generation, ranks, nonce, HMAC 116
//                                               bytes
//   verdict: status, HMAC             33 bytes →
//
// Each HMAC-SHA256 covers both nonces and the whole hello under its own label, so a proof is good
// for one connection, one group, one pair of ranks and one direction. The connecting side proves
// first: a stranger at the open port learns nothing that depends on the secret. Payload is neither
// encrypted nor signed afterwards: the data network is private.
#pragma once

#include "base/file.h"
#include "comm/tcp_socket.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace inferd::comm {

inline constexpr std::size_t kDigestBytes = 32;
using Digest = std::array<std::byte, kDigestBytes>;

/// What a connection is for. The numbers travel little-endian.
struct Hello {
  Digest group = {};  ///< SHA-256 of the group's id
  std::uint64_t generation = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t size = 0;

  bool operator==(const Hello&) const = default;
};

Digest GroupDigest(std::string_view id);

enum class HandshakeState { kReading, kWriting, kDone, kFailed };
enum class Verdict : std::uint8_t { kWelcome = 0, kBadProof = 1, kWrongGroup = 2 };

inline constexpr std::size_t kGreetingBytes = 8 + kDigestBytes;
inline constexpr std::size_t kHelloBytes =
    kDigestBytes + 8 + 3 * 4 + kDigestBytes;  ///< without its HMAC
inline constexpr std::size_t kVerdictBytes = 1 + kDigestBytes;

/// The accepting side. Ends within kPatience of the accept, whatever the other side does; reads 116
/// bytes at most.
class ServerHandshake {
 public:
  static constexpr std::chrono::milliseconds kPatience{900};

  ServerHandshake(base::UniqueFd fd, std::string_view secret);

  int fd() const { return fd_.get(); }
  HandshakeState state() const { return state_; }
  bool Expired() const { return std::chrono::steady_clock::now() >= expires_; }
  std::chrono::steady_clock::time_point expires() const { return expires_; }
  /// Reads and writes what is possible now. `expected` decides over hellos of its own group and
  /// generation; those of other groups are welcome, for a later join.
  HandshakeState Advance(const Hello& expected);
  /// kDone only.
  const Hello& hello() const { return hello_; }
  base::UniqueFd TakeFd() { return std::move(fd_); }

 private:
  enum class Stage { kGreeting, kHello, kVerdict };
  void Judge(const Hello& expected);

  base::UniqueFd fd_;
  const std::string_view secret_;
  const std::chrono::steady_clock::time_point expires_;
  HandshakeState state_ = HandshakeState::kWriting;
  Stage stage_ = Stage::kGreeting;
  std::size_t done_ = 0;
  std::array<std::byte, kGreetingBytes> greeting_ = {};
  std::array<std::byte, kHelloBytes + kDigestBytes> message_ = {};
  std::array<std::byte, kVerdictBytes> answer_ = {};
  Verdict verdict_ = Verdict::kBadProof;
  Hello hello_;
};

/// The connecting side, over a socket from StartConnect.
class ClientHandshake {
 public:
  ClientHandshake(base::UniqueFd fd, std::string_view secret, const Hello& hello);

  int fd() const { return fd_.get(); }
  HandshakeState state() const { return state_; }
  HandshakeState Advance();
  base::UniqueFd TakeFd() { return std::move(fd_); }

  /// kFailed only. Fatal: trying again will not help.
  bool fatal() const { return fatal_; }
  const std::string& failure() const { return failure_; }

 private:
  enum class Stage { kConnect, kGreeting, kHello, kVerdict };
  HandshakeState Fail(std::string why, bool fatal);
  void WriteHello();
  HandshakeState CheckVerdict();

  base::UniqueFd fd_;
  const std::string_view secret_;
  const Hello hello_;
  HandshakeState state_ = HandshakeState::kWriting;
  Stage stage_ = Stage::kConnect;
  std::size_t done_ = 0;
  std::array<std::byte, kGreetingBytes> greeting_ = {};
  std::array<std::byte, kHelloBytes + kDigestBytes> message_ = {};
  std::array<std::byte, kVerdictBytes> answer_ = {};
  bool fatal_ = false;
  std::string failure_;
};

}  // namespace inferd::comm

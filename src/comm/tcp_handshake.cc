// SPDX-License-Identifier: Apache-2.0
// Both sides of the handshake as state machines over non-blocking sockets.
#include "comm/tcp_handshake.h"

#include "base/check.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace inferd::comm {
namespace {

constexpr std::string_view kMagic("inferd\0\1", 8);
constexpr std::string_view kHelloLabel = "inferd comm hello v1";
constexpr std::string_view kVerdictLabel = "inferd comm verdict v1";

using Bytes = std::span<const std::byte>;

Digest Hmac(std::string_view secret, std::string_view label, std::initializer_list<Bytes> parts) {
  const Bytes label_bytes = std::as_bytes(std::span(label));
  std::vector<std::byte> text(label_bytes.begin(), label_bytes.end());
  for (const Bytes part : parts) {
    text.insert(text.end(), part.begin(), part.end());
  }
  Digest mac = {};
  unsigned int length = 0;
  const unsigned char* made = ::HMAC(::EVP_sha256(),
                                     secret.data(),
                                     static_cast<int>(secret.size()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     text.size(),
                                     reinterpret_cast<unsigned char*>(mac.data()),
                                     &length);
  INFERD_CHECK(made != nullptr && length == mac.size());
  return mac;
}

bool SameDigest(const Digest& mac, Bytes theirs) {
  return theirs.size() == mac.size() && ::CRYPTO_memcmp(mac.data(), theirs.data(), mac.size()) == 0;
}

void FillNonce(std::span<std::byte> nonce) {
  INFERD_CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()),
                            static_cast<int>(nonce.size())) == 1);
}

template <class T>
std::byte* Put(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    *at++ = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
  return at;
}

template <class T>
const std::byte* Get(const std::byte* at, T& value) {
  value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<T>(static_cast<T>(*at++) << (8 * i));
  }
  return at;
}

Hello ParseHello(Bytes message) {
  Hello hello;
  const std::byte* at = message.data();
  std::copy_n(at, hello.group.size(), hello.group.begin());
  at = Get(at + hello.group.size(), hello.generation);
  at = Get(at, hello.from);
  at = Get(at, hello.to);
  Get(at, hello.size);
  return hello;
}

Digest HelloProof(std::string_view secret, Bytes greeting, Bytes message) {
  return Hmac(secret, kHelloLabel, {greeting, message.first(kHelloBytes)});
}

/// Covers the connecting side's nonce: it lies inside the hello.
Digest VerdictProof(std::string_view secret, Bytes greeting, Bytes message, std::byte status) {
  return Hmac(secret, kVerdictLabel, {greeting, message.first(kHelloBytes), Bytes(&status, 1)});
}

}  // namespace

Digest GroupDigest(std::string_view id) {
  Digest digest = {};
  ::SHA256(reinterpret_cast<const unsigned char*>(id.data()),
           id.size(),
           reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

ServerHandshake::ServerHandshake(base::UniqueFd fd, std::string_view secret)
    : fd_(std::move(fd)), secret_(secret), expires_(std::chrono::steady_clock::now() + kPatience) {
  std::memcpy(greeting_.data(), kMagic.data(), kMagic.size());
  FillNonce(std::span(greeting_).subspan(kMagic.size()));
}

void ServerHandshake::Judge(const Hello& expected) {
  const Bytes message(message_);
  if (!SameDigest(HelloProof(secret_, greeting_, message), message.subspan(kHelloBytes))) {
    verdict_ = Verdict::kBadProof;
  } else {
    hello_ = ParseHello(message);
    const bool ours = hello_.group == expected.group && hello_.generation == expected.generation;
    const bool fits = hello_.to == expected.to && hello_.size == expected.size &&
                      hello_.from > hello_.to && hello_.from < hello_.size;
    verdict_ = ours && !fits ? Verdict::kWrongGroup : Verdict::kWelcome;
  }
  answer_[0] = static_cast<std::byte>(verdict_);
  if (verdict_ != Verdict::kBadProof) {
    const Digest mac = VerdictProof(secret_, greeting_, message, answer_[0]);
    std::copy(mac.begin(), mac.end(), answer_.begin() + 1);
  }
}

HandshakeState ServerHandshake::Advance(const Hello& expected) {
  while (state_ == HandshakeState::kReading || state_ == HandshakeState::kWriting) {
    Io io = Io::kProgress;
    std::size_t whole = 0;
    switch (stage_) {
      case Stage::kGreeting:
        whole = greeting_.size();
        io = WriteSome(fd(), greeting_.data(), whole, done_);
        break;
      case Stage::kHello:
        whole = message_.size();
        io = ReadSome(fd(), message_.data(), whole, done_);
        break;
      case Stage::kVerdict:
        whole = answer_.size();
        io = WriteSome(fd(), answer_.data(), whole, done_);
        break;
    }
    if (io == Io::kWouldBlock) {
      return state_;
    }
    if (io == Io::kClosed) {
      return state_ = HandshakeState::kFailed;
    }
    if (done_ < whole) {
      continue;
    }
    done_ = 0;
    if (stage_ == Stage::kGreeting) {
      stage_ = Stage::kHello;
      state_ = HandshakeState::kReading;
    } else if (stage_ == Stage::kHello) {
      Judge(expected);
      stage_ = Stage::kVerdict;
      state_ = HandshakeState::kWriting;
    } else {
      state_ = verdict_ == Verdict::kWelcome ? HandshakeState::kDone : HandshakeState::kFailed;
    }
  }
  return state_;
}

ClientHandshake::ClientHandshake(base::UniqueFd fd, std::string_view secret, const Hello& hello)
    : fd_(std::move(fd)), secret_(secret), hello_(hello) {}

HandshakeState ClientHandshake::Fail(std::string why, bool fatal) {
  failure_ = std::move(why);
  fatal_ = fatal;
  return state_ = HandshakeState::kFailed;
}

void ClientHandshake::WriteHello() {
  std::byte* at = std::copy(hello_.group.begin(), hello_.group.end(), message_.data());
  at = Put(at, hello_.generation);
  at = Put(at, hello_.from);
  at = Put(at, hello_.to);
  at = Put(at, hello_.size);
  FillNonce({at, kDigestBytes});
  const Digest mac = HelloProof(secret_, greeting_, message_);
  std::copy(mac.begin(), mac.end(), at + kDigestBytes);
}

HandshakeState ClientHandshake::CheckVerdict() {
  const auto verdict = static_cast<Verdict>(answer_[0]);
  if (verdict == Verdict::kBadProof) {
    return Fail("it refused our proof; the same secret must be given to all ranks", true);
  }
  const Digest mac = VerdictProof(secret_, greeting_, message_, answer_[0]);
  if (!SameDigest(mac, Bytes(answer_).subspan(1))) {
    return Fail("it could not prove that it knows the secret", true);
  }
  if (verdict != Verdict::kWelcome) {
    return Fail("it has another rank or another group size under this group id", true);
  }
  return state_ = HandshakeState::kDone;
}

HandshakeState ClientHandshake::Advance() {
  while (state_ == HandshakeState::kReading || state_ == HandshakeState::kWriting) {
    Io io = Io::kProgress;
    std::size_t whole = 0;
    switch (stage_) {
      case Stage::kConnect:
        if (const int error = ConnectError(fd()); error != 0) {
          return Fail(::strerrordesc_np(error), false);
        }
        break;
      case Stage::kGreeting:
        whole = greeting_.size();
        io = ReadSome(fd(), greeting_.data(), whole, done_);
        break;
      case Stage::kHello:
        whole = message_.size();
        io = WriteSome(fd(), message_.data(), whole, done_);
        break;
      case Stage::kVerdict:
        whole = answer_.size();
        io = ReadSome(fd(), answer_.data(), whole, done_);
        break;
    }
    if (io == Io::kWouldBlock) {
      return state_;
    }
    if (io == Io::kClosed) {
      return Fail("it closed the connection during the handshake", false);
    }
    if (done_ < whole) {
      continue;
    }
    done_ = 0;
    switch (stage_) {
      case Stage::kConnect:
        stage_ = Stage::kGreeting;
        state_ = HandshakeState::kReading;
        break;
      case Stage::kGreeting:
        if (std::memcmp(greeting_.data(), kMagic.data(), kMagic.size()) != 0) {
          return Fail("it does not speak this protocol (another version of inferd?)", true);
        }
        WriteHello();
        stage_ = Stage::kHello;
        state_ = HandshakeState::kWriting;
        break;
      case Stage::kHello:
        stage_ = Stage::kVerdict;
        state_ = HandshakeState::kReading;
        break;
      case Stage::kVerdict:
        return CheckVerdict();
    }
  }
  return state_;
}

}  // namespace inferd::comm

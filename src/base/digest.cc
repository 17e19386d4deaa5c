// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include "base/error.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace inferd::base {
namespace {

constexpr std::size_t kTables = 8;
using CrcTables = std::array<std::array<std::uint64_t, 256>, kTables>;

// Reflected CRCs. tables[k][b] is the CRC of byte b with k zero bytes after it, so that eight bytes
// are looked up at once.
constexpr CrcTables MakeTables(std::uint64_t polynomial) {
  CrcTables tables{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? polynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kTables; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8U) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

const CrcTables& TablesOf(DigestKind kind) {
  static const CrcTables crc32 = MakeTables(0xEDB88320U);
  static const CrcTables crc32c = MakeTables(0x82F63B78U);
  static const CrcTables crc64nvme = MakeTables(0x9A6C9329AC4BC9B5U);
  return kind == DigestKind::kCrc32 ? crc32 : kind == DigestKind::kCrc32c ? crc32c : crc64nvme;
}

std::uint64_t UpdateCrc(const CrcTables& t, std::uint64_t crc, std::span<const std::byte> data) {
  while (data.size() >= kTables) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), sizeof(word));
    word ^= crc;
    crc = t[7][word & 0xFFU] ^ t[6][(word >> 8U) & 0xFFU] ^ t[5][(word >> 16U) & 0xFFU] ^
          t[4][(word >> 24U) & 0xFFU] ^ t[3][(word >> 32U) & 0xFFU] ^ t[2][(word >> 40U) & 0xFFU] ^
          t[1][(word >> 48U) & 0xFFU] ^ t[0][word >> 56U];
    data = data.subspan(kTables);
  }
  for (const std::byte byte : data) {
    crc = (crc >> 8U) ^ t[0][(crc ^ static_cast<std::uint64_t>(byte)) & 0xFFU];
  }
  return crc;
}

bool IsCrc(DigestKind kind) {
  return kind == DigestKind::kCrc32 || kind == DigestKind::kCrc32c ||
         kind == DigestKind::kCrc64Nvme;
}

std::uint64_t CrcMask(DigestKind kind) {
  return kind == DigestKind::kCrc64Nvme ? ~std::uint64_t{0} : 0xFFFFFFFFU;
}

const EVP_MD* Algorithm(DigestKind kind) {
  return kind == DigestKind::kSha256 ? EVP_sha256()
         : kind == DigestKind::kSha1 ? EVP_sha1()
                                     : EVP_md5();
}

}  // namespace

std::string_view DigestName(DigestKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {
      "sha256", "sha1", "md5", "crc32", "crc32c", "crc64nvme"};
  return kNames[static_cast<std::size_t>(kind)];
}

struct Digest::State {
  DigestKind kind;
  std::uint64_t crc = 0;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{nullptr, &EVP_MD_CTX_free};
};

Digest::Digest(std::unique_ptr<State> state) : state_(std::move(state)) {}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

Result<Digest> Digest::Make(DigestKind kind) {
  auto state = std::make_unique<State>();
  state->kind = kind;
  if (IsCrc(kind)) {
    state->crc = CrcMask(kind);
  } else {
    state->context.reset(EVP_MD_CTX_new());
    if (EVP_DigestInit_ex(state->context.get(), Algorithm(kind), nullptr) != 1) {
      return Unimplemented("OpenSSL on this machine refuses {}", DigestName(kind));
    }
  }
  return Digest(std::move(state));
}

void Digest::Update(std::span<const std::byte> data) {
  if (IsCrc(state_->kind)) {
    state_->crc = UpdateCrc(TablesOf(state_->kind), state_->crc, data);
  } else {
    EVP_DigestUpdate(state_->context.get(), data.data(), data.size());
  }
}

std::string Digest::Finish() {
  std::string bytes;
  if (IsCrc(state_->kind)) {
    const std::uint64_t mask = CrcMask(state_->kind);
    const std::uint64_t crc = state_->crc ^ mask;
    for (int shift = state_->kind == DigestKind::kCrc64Nvme ? 56 : 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(crc >> static_cast<unsigned>(shift));
    }
    state_->crc = mask;
    return bytes;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(state_->context.get(), digest.data(), &length);
  EVP_DigestInit_ex(state_->context.get(), Algorithm(state_->kind), nullptr);
  bytes.assign(reinterpret_cast<const char*>(digest.data()), length);
  return bytes;
}

std::string ToHex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return hex;
}

std::string ToBase64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3), '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

}  // namespace inferd::base

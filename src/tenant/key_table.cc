// SPDX-License-Identifier: Apache-2.0
#include "tenant/key_table.h"

#include "base/check.h"
#include "base/error.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <set>
#include <utility>

namespace inferd::tenant {
namespace {

constexpr std::size_t kOwnerBytes = 16;  // of the digest: enough to tell keys apart

constexpr std::size_t kMinKeyBytes = 8;
constexpr std::size_t kMaxKeyBytes = 512;

}  // namespace

KeyDigest DigestOf(std::string_view key_text) {
  KeyDigest digest{};
  unsigned length = 0;
  const int ok =
      EVP_Digest(key_text.data(), key_text.size(), digest.data(), &length, EVP_sha256(), nullptr);
  INFERD_CHECK(ok == 1 && length == digest.size());
  return digest;
}

Result<KeyTable> KeyTable::Make(std::vector<ApiKey> keys) {
  std::set<std::string_view> names;
  std::set<KeyDigest> digests;
  for (const ApiKey& key : keys) {
    if (!names.insert(key.name).second) {
      return InvalidArgument("two API keys are named '{}'; give each its own name", key.name);
    }
    if (!digests.insert(key.digest).second) {
      return InvalidArgument("the API key '{}' is also listed under another name", key.name);
    }
  }
  KeyTable table;
  table.keys_ = std::move(keys);
  return table;
}

const ApiKey* KeyTable::Find(std::string_view key_text) const {
  if (key_text.empty() || key_text.size() > kMaxKeyBytes) {
    return nullptr;
  }
  const KeyDigest digest = DigestOf(key_text);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    found = CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0 ? &key : found;
  }
  return found;
}

std::string ApiKey::owner() const {
  if (!is_numbered) {
    return "name:" + name;
  }
  std::string owner = "sha256:";
  for (std::size_t i = 0; i < kOwnerBytes; ++i) {
    owner += fmt::format("{:02x}", digest[i]);
  }
  return owner;
}

Result<std::vector<ApiKey>> KeysFromTexts(const std::vector<std::string>& texts) {
  std::vector<ApiKey> keys;
  for (const std::string& text : texts) {
    if (text.size() < kMinKeyBytes || text.size() > kMaxKeyBytes ||
        text.find_first_of(" \t\r\n") != std::string::npos) {
      return InvalidArgument(
          "API key {} has {} bytes; a key has {} to {} bytes without blanks, for example "
          "from `openssl rand -hex 32`",
          keys.size() + 1,
          text.size(),
          kMinKeyBytes,
          kMaxKeyBytes);
    }
    ApiKey key;
    key.name = fmt::format("key-{}", keys.size() + 1);
    key.digest = DigestOf(text);
    key.admin = true;
    key.is_numbered = true;
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace inferd::tenant

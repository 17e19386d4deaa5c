// SPDX-License-Identifier: Apache-2.0
// All keys of the server at one moment, and the one place where a key's text is compared.
// Immutable; a changed key file makes a new table.
#pragma once

#include "inferd/result.h"
#include "tenant/api_key.h"

#include <string>
#include <string_view>
#include <vector>

namespace inferd::tenant {

class KeyTable {
 public:
  KeyTable() = default;
  /// Refuses two keys of one name or of one text.
  static Result<KeyTable> Make(std::vector<ApiKey> keys);

  bool empty() const { return keys_.empty(); }
  const std::vector<ApiKey>& keys() const { return keys_; }

  /// The key with this text, or null. Digests are compared, each in full and all of them, so the
  /// time tells nothing about the keys.
  const ApiKey* Find(std::string_view key_text) const;

 private:
  std::vector<ApiKey> keys_;
};

/// The keys of --api-key: named key-1, key-2, ..., with every scope and no limits.
Result<std::vector<ApiKey>> KeysFromTexts(const std::vector<std::string>& texts);

/// The keys of a key file (docs/security.md shows one). `source` names the file in errors, which
/// never show a key.
Result<std::vector<ApiKey>> ParseKeyFile(const std::string& text, const std::string& source);

}  // namespace inferd::tenant

// SPDX-License-Identifier: Apache-2.0
// One API key as the operator wrote it, never with its text: plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::tenant {

/// sha256 of a key's text.
using KeyDigest = std::array<std::uint8_t, 32>;

KeyDigest DigestOf(std::string_view key_text);

/// What an operation asks of a key. kOpen: no key is needed; kAny: any valid one will do.
enum class Scope : std::uint8_t { kOpen, kAny, kInference, kMetrics, kAdmin };

/// Of a key and of an inference objective, both ways: two can be added.
constexpr std::int32_t kMaxPriority = 1'000'000;
/// Of a share, from a key file or a gateway.
constexpr std::int32_t kMaxWeight = 1000;
constexpr std::size_t kMaxTenantBytes = 256;  // of the tenant that a gateway names

/// 0 means no limit.
struct KeyLimits {
  std::int64_t requests_per_minute = 0;
  std::int64_t tokens_per_minute = 0;
  std::int64_t max_concurrency = 0;
  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

struct ApiKey {
  std::string name;
  KeyDigest digest{};
  bool inference = true;
  bool metrics = false;
  bool admin = false;               // includes the other two
  bool gateway = false;             // may say for whom it asks (Ask::tenant)
  std::vector<std::string> models;  // as clients call them; empty: all
  KeyLimits limits;
  std::int32_t priority = 0;  // lower goes first; at most kMaxPriority either way
  std::int32_t weight = 1;    // of its share among those of equal priority, 1 to kMaxWeight
  bool is_numbered = false;   // by its place in a list: the name may be another key's tomorrow

  /// Whom stored things belong to; stays over restarts, and over a new text under the same name.
  std::string owner() const;

  bool Has(Scope scope) const {
    switch (scope) {
      case Scope::kOpen:
      case Scope::kAny:
        return true;
      case Scope::kInference:
        return inference || admin;
      case Scope::kMetrics:
        return metrics || admin;
      case Scope::kAdmin:
        return admin;
    }
    return false;
  }
};

}  // namespace inferd::tenant

// SPDX-License-Identifier: Apache-2.0
// Reads a key file. The only file of this room that knows yaml-cpp, which throws.
#include "base/error.h"
#include "tenant/key_table.h"

#include <yaml-cpp/yaml.h>

#include <exception>
#include <limits>
#include <optional>
#include <utility>

namespace inferd::tenant {
namespace {

constexpr std::size_t kMaxKeys = 10'000;
constexpr std::size_t kMaxNameBytes = 64;
constexpr std::int64_t kMaxLimit = 1'000'000'000'000;

int HexValue(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

std::optional<KeyDigest> DigestFromHex(const std::string& hex) {
  KeyDigest digest{};
  if (hex.size() != 2 * digest.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    digest[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return digest;
}

/// Reads the entry of one key; `where` names it in errors.
class EntryReader {
 public:
  EntryReader(const YAML::Node& entry, std::string where)
      : entry_(entry), where_(std::move(where)) {}

  Result<ApiKey> Read() {
    if (!entry_.IsMap()) {
      return InvalidArgument("{} must be a map with at least name and sha256", where_);
    }
    ApiKey key;
    for (const auto& field : entry_) {
      INFERD_TRY(ReadField(field.first.as<std::string>(), field.second, &key));
    }
    if (key.name.empty() || !has_digest_) {
      return InvalidArgument("{} needs {}", where_, key.name.empty() ? "a name" : "sha256");
    }
    return key;
  }

 private:
  Result<> ReadField(const std::string& name, const YAML::Node& value, ApiKey* key) {
    if (name == "name") {
      return ReadName(value, key);
    }
    if (name == "sha256") {
      const auto digest = DigestFromHex(value.as<std::string>(""));
      if (!digest) {
        return InvalidArgument(
            "{}: sha256 must be 64 hex digits: printf %s \"$KEY\" | sha256sum prints them", where_);
      }
      key->digest = *digest;
      has_digest_ = true;
      return {};
    }
    if (name == "scopes") {
      return ReadScopes(value, key);
    }
    if (name == "models") {
      if (!value.IsSequence()) {
        return InvalidArgument("{}: models must be a list of names", where_);
      }
      for (const auto& model : value) {
        key->models.push_back(model.as<std::string>());
      }
      return {};
    }
    if (name == "weight") {
      INFERD_ASSIGN(const std::int64_t weight, ReadInt(name, value, 1, kMaxWeight));
      key->weight = static_cast<std::int32_t>(weight);
      return {};
    }
    if (name == "priority") {
      INFERD_ASSIGN(const std::int64_t priority, ReadInt(name, value, -kMaxPriority, kMaxPriority));
      key->priority = static_cast<std::int32_t>(priority);
      return {};
    }
    std::int64_t* const limit = name == "requests_per_minute" ? &key->limits.requests_per_minute
                                : name == "tokens_per_minute" ? &key->limits.tokens_per_minute
                                : name == "max_concurrency"   ? &key->limits.max_concurrency
                                                              : nullptr;
    if (limit == nullptr) {
      return InvalidArgument(
          "{}: unknown field '{}'; the fields are name, sha256, scopes, models, "
          "requests_per_minute, tokens_per_minute, max_concurrency, priority and weight",
          where_,
          name);
    }
    INFERD_ASSIGN(*limit, ReadInt(name, value, 1, kMaxLimit));
    return {};
  }

  Result<> ReadName(const YAML::Node& value, ApiKey* key) const {
    key->name = value.as<std::string>("");
    for (const char c : key->name) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        key->name.clear();
      }
    }
    if (key->name.empty() || key->name.size() > kMaxNameBytes) {
      return InvalidArgument("{}: name must have 1 to {} printable bytes", where_, kMaxNameBytes);
    }
    return {};
  }

  Result<> ReadScopes(const YAML::Node& value, ApiKey* key) const {
    if (!value.IsSequence()) {
      return InvalidArgument("{}: scopes must be a list of inference, metrics, admin and gateway",
                             where_);
    }
    key->inference = false;
    for (const auto& item : value) {
      const auto scope = item.as<std::string>();
      if (scope != "inference" && scope != "metrics" && scope != "admin" && scope != "gateway") {
        return InvalidArgument(
            "{}: unknown scope '{}'; the scopes are inference, metrics, admin and gateway",
            where_,
            scope);
      }
      key->inference |= scope == "inference";
      key->metrics |= scope == "metrics";
      key->admin |= scope == "admin";
      key->gateway |= scope == "gateway";
    }
    return {};
  }

  Result<std::int64_t> ReadInt(const std::string& name,
                               const YAML::Node& value,
                               std::int64_t min,
                               std::int64_t max) const {
    std::int64_t number = 0;
    if (!YAML::convert<std::int64_t>::decode(value, number) || number < min || number > max) {
      return InvalidArgument("{}: {} must be an integer from {} to {}", where_, name, min, max);
    }
    return number;
  }

  const YAML::Node& entry_;
  const std::string where_;
  bool has_digest_ = false;
};

}  // namespace

Result<std::vector<ApiKey>> ParseKeyFile(const std::string& text, const std::string& source) {
  try {
    const YAML::Node root = YAML::Load(text);
    const YAML::Node list = root.IsMap() ? root["keys"] : YAML::Node();
    if (!root.IsMap() || root.size() != 1 || !list.IsSequence()) {
      return InvalidArgument("{}: the file must hold one list, `keys:`", source);
    }
    if (list.size() > kMaxKeys) {
      return InvalidArgument("{} has {} keys; at most {} are taken", source, list.size(), kMaxKeys);
    }
    std::vector<ApiKey> keys;
    for (const auto& entry : list) {
      INFERD_ASSIGN(ApiKey key,
                    EntryReader(entry, fmt::format("{}: key {}", source, keys.size() + 1)).Read());
      keys.push_back(std::move(key));
    }
    return keys;
  } catch (const YAML::Exception& error) {
    // The message of the library may quote the file; the place is enough to find the fault.
    return InvalidArgument("{}: not readable as YAML at line {}", source, error.mark.line + 1);
  } catch (const std::exception&) {
    return InvalidArgument("{}: not readable as YAML", source);
  }
}

}  // namespace inferd::tenant

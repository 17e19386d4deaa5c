// SPDX-License-Identifier: Apache-2.0
// JSON files of models, read without trusting them: no exceptions, duplicate keys refused, errors
// name file and key. Included by .cc files of this room only.
#pragma once

#include "inferd/result.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

using Json = nlohmann::ordered_json;

/// Parses an object. Refuses malformed text, other kinds of values, nesting deeper than 64 and keys
/// of the outermost object that occur twice. Values of the outermost keys named in `skip` are not
/// kept. `what` names the file.
Result<Json> ParseJsonObject(std::string_view what,
                             std::string_view text,
                             const std::vector<std::string_view>& skip = {});

/// Typed access to an object's members. Absent and null members are nullopt; other kinds are
/// errors.
class JsonFields {
 public:
  JsonFields(std::string_view what, const Json& object) : what_(what), object_(object) {}

  const std::string& what() const { return what_; }
  /// Null if absent or null.
  const Json* Get(const char* key) const;
  Result<std::optional<std::int64_t>> Int(const char* key) const;
  Result<std::optional<double>> Float(const char* key) const;
  Result<std::optional<bool>> Bool(const char* key) const;
  Result<std::optional<std::string>> String(const char* key) const;
  Result<std::vector<std::int64_t>> Ints(const char* key) const;
  Result<std::vector<float>> Floats(const char* key) const;
  Result<std::vector<std::string>> Strings(const char* key) const;

  // The same with a default.
  Result<std::int64_t> IntOr(const char* key, std::int64_t fallback) const;
  Result<double> FloatOr(const char* key, double fallback) const;
  Result<bool> BoolOr(const char* key, bool fallback) const;
  Result<std::string> StringOr(const char* key, std::string_view fallback) const;

 private:
  Error WrongKind(const char* key, std::string_view wanted) const;

  std::string what_;
  const Json& object_;
};

}  // namespace inferd::store

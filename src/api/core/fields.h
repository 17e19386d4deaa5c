// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked access to the fields of a JSON object of a request. null counts as absent.
// Every failure leaves the path of the field in the Fault.
#pragma once

#include "api/core/error_map.h"
#include "api/core/limits.h"
#include "base/error.h"
#include "inferd/result.h"

#include <fmt/core.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace inferd::api {

/// An InvalidArgument that names the field.
template <class... Args>
Error FieldError(Fault* fault,
                 std::string param,
                 fmt::format_string<Args...> format,
                 Args&&... args) {
  fault->param = std::move(param);
  if (fault->code.empty()) {
    fault->code = "invalid_value";
  }
  return InvalidArgument(format, std::forward<Args>(args)...);
}

/// A parameter that would change the answer and that this server does not have; `param` is its
/// path.
Error NotSupported(Fault* fault, std::string param);
/// The same of one that a later version may have.
Error NotSupportedYet(Fault* fault, std::string param);

/// The value as an integer: 5 and 5.0 are, 5.5 and "5" are not; checked against the limit. `path`
/// names the field.
Result<std::int64_t> ToInt(const nlohmann::ordered_json& value,
                           const IntLimit& limit,
                           const std::string& path,
                           Fault* fault);
Result<double> ToReal(const nlohmann::ordered_json& value,
                      const RealLimit& limit,
                      const std::string& path,
                      Fault* fault);

/// A view of one object; cheap to make. Not thread-safe; lives on the stack of one handler.
class Fields {
 public:
  /// `prefix` is put before field names in errors: "stream_options.".
  Fields(const nlohmann::ordered_json& object, Fault* fault, std::string prefix = "")
      : object_(object), fault_(fault), prefix_(std::move(prefix)) {}

  /// nullptr when absent or null.
  const nlohmann::ordered_json* Find(std::string_view name) const;

  Result<std::optional<std::int64_t>> Int(const IntLimit& limit) const;
  Result<std::optional<double>> Real(const RealLimit& limit) const;
  Result<std::optional<bool>> Bool(std::string_view name) const;
  Result<std::optional<std::string>> String(std::string_view name) const;
  /// Absent: an error.
  Result<std::string> NeededString(std::string_view name) const;
  /// Absent: `fallback`.
  Result<bool> BoolOr(std::string_view name, bool fallback) const;

  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }
  Fault* fault() const { return fault_; }

 private:
  const nlohmann::ordered_json& object_;
  Fault* fault_;
  std::string prefix_;
};

}  // namespace inferd::api

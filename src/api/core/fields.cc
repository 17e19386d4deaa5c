// SPDX-License-Identifier: Apache-2.0
#include "api/core/fields.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Error NotSupported(Fault* fault, std::string param) {
  *fault = {std::move(param), "unsupported_parameter"};
  return Unimplemented("{} is not supported by this server", fault->param);
}

Error NotSupportedYet(Fault* fault, std::string param) {
  *fault = {std::move(param), "unsupported_parameter"};
  return Unimplemented("{} is not supported by this server yet", fault->param);
}

Result<std::int64_t> ToInt(const Json& value,
                           const IntLimit& limit,
                           const std::string& path,
                           Fault* fault) {
  std::int64_t number = 0;
  bool fits = true;
  if (value.is_number_unsigned()) {
    const auto raw = value.get<std::uint64_t>();
    fits = raw <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    number = static_cast<std::int64_t>(raw);
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const auto raw = value.get<double>();
    fits = std::abs(raw) < 0x1p63;
    if (fits && raw != std::floor(raw)) {
      return FieldError(fault, path, "{} must be an integer, not {}", path, raw);
    }
    number = fits ? static_cast<std::int64_t>(raw) : 0;
  } else {
    return FieldError(fault, path, "{} must be an integer, not {}", path, value.type_name());
  }
  if (!fits || number < limit.min || number > limit.max) {
    return FieldError(fault, path, "{} must be from {} to {}", path, limit.min, limit.max);
  }
  return number;
}

Result<double> ToReal(const Json& value,
                      const RealLimit& limit,
                      const std::string& path,
                      Fault* fault) {
  if (!value.is_number()) {
    return FieldError(fault, path, "{} must be a number, not {}", path, value.type_name());
  }
  const auto number = value.get<double>();
  if (!(limit.min_exclusive ? number > limit.min : number >= limit.min) || !(number <= limit.max)) {
    return FieldError(fault,
                      path,
                      "{} must be {} {} and at most {}, not {}",
                      path,
                      limit.min_exclusive ? "greater than" : "at least",
                      limit.min,
                      limit.max,
                      number);
  }
  return number;
}

const Json* Fields::Find(std::string_view name) const {
  // Of lists (messages, tools) every item may carry what it likes.
  if (fault_->asked != nullptr && prefix_.find('[') == std::string::npos) {
    fault_->asked->push_back(Path(name));
  }
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Result<std::optional<std::int64_t>> Fields::Int(const IntLimit& limit) const {
  const Json* const value = Find(limit.name);
  if (value == nullptr) {
    return std::optional<std::int64_t>();
  }
  INFERD_ASSIGN(const std::int64_t number, ToInt(*value, limit, Path(limit.name), fault_));
  return std::optional(number);
}

Result<std::optional<double>> Fields::Real(const RealLimit& limit) const {
  const Json* const value = Find(limit.name);
  if (value == nullptr) {
    return std::optional<double>();
  }
  INFERD_ASSIGN(const double number, ToReal(*value, limit, Path(limit.name), fault_));
  return std::optional(number);
}

Result<std::optional<bool>> Fields::Bool(std::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (!value->is_boolean()) {
    return FieldError(
        fault_, Path(name), "{} must be true or false, not {}", Path(name), value->type_name());
  }
  return std::optional(value->get<bool>());
}

Result<bool> Fields::BoolOr(std::string_view name, bool fallback) const {
  INFERD_ASSIGN(const auto value, Bool(name));
  return value.value_or(fallback);
}

Result<std::optional<std::string>> Fields::String(std::string_view name) const {
  const Json* const value = Find(name);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (!value->is_string()) {
    return FieldError(
        fault_, Path(name), "{} must be a string, not {}", Path(name), value->type_name());
  }
  return std::optional(value->get<std::string>());
}

Result<std::string> Fields::NeededString(std::string_view name) const {
  INFERD_ASSIGN(auto value, String(name));
  if (!value) {
    return FieldError(fault_, Path(name), "{} is missing", Path(name));
  }
  return *std::move(value);
}

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
#include "store/json_util.h"

#include "base/error.h"

#include <algorithm>
#include <unordered_set>

namespace inferd::store {
namespace {

constexpr int kMaxDepth = 64;

// What a message shows of a value: short, on one line.
std::string Excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kLimit = 60;
  if (text.size() > kLimit) {
    text = text.substr(0, kLimit) + "...";
  }
  return text;
}

}  // namespace

Result<Json> ParseJsonObject(std::string_view what,
                             std::string_view text,
                             const std::vector<std::string_view>& skip) {
  std::unordered_set<std::string> seen;
  std::string twice;
  bool too_deep = false;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (event == Json::parse_event_t::key && depth == 1) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!seen.insert(key).second && twice.empty()) {
        twice = key;
      }
      return std::ranges::find(skip, key) == skip.end();
    }
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (too_deep) {
    return InvalidArgument("{}: JSON nested deeper than {}", what, kMaxDepth);
  }
  if (!twice.empty()) {
    return InvalidArgument("{}: key {} occurs twice", what, twice);
  }
  if (!json.is_object()) {
    return InvalidArgument("{}: not a JSON object, or malformed JSON", what);
  }
  return json;
}

const Json* JsonFields::Get(const char* key) const {
  const auto place = object_.find(key);
  return place == object_.end() || place->is_null() ? nullptr : &*place;
}

Error JsonFields::WrongKind(const char* key, std::string_view wanted) const {
  return InvalidArgument("{}: {} is {}, but {} is needed", what_, key, Excerpt(*Get(key)), wanted);
}

Result<std::optional<std::int64_t>> JsonFields::Int(const char* key) const {
  const Json* value = Get(key);
  if (value == nullptr) {
    return std::optional<std::int64_t>();
  }
  // Some tools write whole numbers as 4096.0.
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (number == static_cast<double>(static_cast<std::int64_t>(std::clamp(number, -9e18, 9e18)))) {
      return std::optional<std::int64_t>(static_cast<std::int64_t>(number));
    }
  }
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX)) {
    return WrongKind(key, "a whole number");
  }
  return std::optional<std::int64_t>(value->get<std::int64_t>());
}

Result<std::optional<double>> JsonFields::Float(const char* key) const {
  const Json* value = Get(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  if (!value->is_number()) {
    return WrongKind(key, "a number");
  }
  return std::optional<double>(value->get<double>());
}

Result<std::optional<bool>> JsonFields::Bool(const char* key) const {
  const Json* value = Get(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (!value->is_boolean()) {
    return WrongKind(key, "true or false");
  }
  return std::optional<bool>(value->get<bool>());
}

Result<std::optional<std::string>> JsonFields::String(const char* key) const {
  const Json* value = Get(key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (!value->is_string()) {
    return WrongKind(key, "a string");
  }
  return std::optional<std::string>(value->get<std::string>());
}

Result<std::vector<std::int64_t>> JsonFields::Ints(const char* key) const {
  std::vector<std::int64_t> numbers;
  const Json* value = Get(key);
  if (value == nullptr) {
    return numbers;
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    if (!item.is_number_integer()) {
      return WrongKind(key, "a whole number or a list of them");
    }
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

Result<std::vector<float>> JsonFields::Floats(const char* key) const {
  std::vector<float> numbers;
  const Json* value = Get(key);
  if (value == nullptr) {
    return numbers;
  }
  if (!value->is_array()) {
    return WrongKind(key, "a list of numbers");
  }
  for (const Json& item : *value) {
    if (!item.is_number()) {
      return WrongKind(key, "a list of numbers");
    }
    numbers.push_back(item.get<float>());
  }
  return numbers;
}

Result<std::vector<std::string>> JsonFields::Strings(const char* key) const {
  std::vector<std::string> strings;
  const Json* value = Get(key);
  if (value == nullptr) {
    return strings;
  }
  if (!value->is_array()) {
    return WrongKind(key, "a list of strings");
  }
  for (const Json& item : *value) {
    if (!item.is_string()) {
      return WrongKind(key, "a list of strings");
    }
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

Result<std::int64_t> JsonFields::IntOr(const char* key, std::int64_t fallback) const {
  INFERD_ASSIGN(const auto value, Int(key));
  return value.value_or(fallback);
}

Result<double> JsonFields::FloatOr(const char* key, double fallback) const {
  INFERD_ASSIGN(const auto value, Float(key));
  return value.value_or(fallback);
}

Result<bool> JsonFields::BoolOr(const char* key, bool fallback) const {
  INFERD_ASSIGN(const auto value, Bool(key));
  return value.value_or(fallback);
}

Result<std::string> JsonFields::StringOr(const char* key, std::string_view fallback) const {
  INFERD_ASSIGN(auto value, String(key));
  return value ? *std::move(value) : std::string(fallback);
}

}  // namespace inferd::store

// SPDX-License-Identifier: Apache-2.0
#include "text/tool_shape.h"

#include "text/call_body.h"

#include <nlohmann/json.hpp>

namespace inferd::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 16;

std::uint8_t BitsOfName(const Json& name) {
  if (name == "string") {
    return kStringType;
  }
  if (name == "number" || name == "integer") {
    return kNumberType;
  }
  if (name == "boolean") {
    return kBooleanType;
  }
  if (name == "null") {
    return kNullType;
  }
  if (name == "object") {
    return kObjectType;
  }
  return name == "array" ? kArrayType : kAnyType;
}

std::uint8_t BitsOfValue(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return kStringType;
    case Json::value_t::boolean:
      return kBooleanType;
    case Json::value_t::null:
      return kNullType;
    case Json::value_t::object:
      return kObjectType;
    case Json::value_t::array:
      return kArrayType;
    default:
      return kNumberType;
  }
}

std::uint8_t BitsOfSchema(const Json& schema, int depth) {
  if (!schema.is_object() || depth > kMaxDepth) {
    return kAnyType;
  }
  std::uint8_t bits = 0;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) {
      return BitsOfName(*type);
    }
    for (const Json& name : *type) {
      bits |= BitsOfName(name);
    }
    return bits;
  }
  if (const auto constant = schema.find("const"); constant != schema.end()) {
    return BitsOfValue(*constant);
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) {
      bits |= BitsOfValue(value);
    }
    return bits;
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const auto options = schema.find(key); options != schema.end() && options->is_array()) {
      for (const Json& option : *options) {
        bits |= BitsOfSchema(option, depth + 1);
      }
      return bits;
    }
  }
  return kAnyType;
}

}  // namespace

ToolShape MakeToolShape(std::string_view name, const Json& parameters) {
  ToolShape shape{std::string(name), {}};
  if (!parameters.is_object() || !parameters.contains("properties") ||
      !parameters["properties"].is_object()) {
    return shape;
  }
  for (const auto& [key, schema] : parameters["properties"].items()) {
    const std::uint8_t bits = BitsOfSchema(schema, 0);
    shape.types[key] = bits == 0 ? static_cast<std::uint8_t>(kAnyType) : bits;
  }
  return shape;
}

}  // namespace inferd::text

// SPDX-License-Identifier: Apache-2.0
#include "text/tool_shape.h"

#include "text/call_body.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

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

/// "$defs/City"; null: there is none.
const Json* Follow(std::string_view path, const Json& root) {
  const Json* at = &root;
  while (true) {
    const std::size_t slash = path.find('/');
    const auto found = at->is_object() ? at->find(std::string(path.substr(0, slash))) : at->end();
    if (found == at->end()) {
      return nullptr;
    }
    at = &*found;
    if (slash == std::string_view::npos) {
      return at;
    }
    path.remove_prefix(slash + 1);
  }
}

/// `root`: what its references start from.
std::uint8_t BitsOfSchema(const Json& schema, const Json& root, int depth) {
  if (!schema.is_object() || depth > kMaxDepth) {
    return kAnyType;
  }
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    const std::string text = reference->is_string() ? reference->get<std::string>() : "";
    const Json* const target = text.starts_with("#/") ? Follow(text.substr(2), root) : nullptr;
    return target == nullptr ? static_cast<std::uint8_t>(kAnyType)
                             : BitsOfSchema(*target, root, depth + 1);
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
        bits |= BitsOfSchema(option, root, depth + 1);
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
    const std::uint8_t bits = BitsOfSchema(schema, parameters, 0);
    shape.types[key] = bits == 0 ? static_cast<std::uint8_t>(kAnyType) : bits;
  }
  return shape;
}

}  // namespace inferd::text

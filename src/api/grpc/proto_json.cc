// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/proto_json.h"

#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "inferd/v1/options.pb.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Result<Json> MessageValue(const Message& message, const std::string& path, Fault* fault);

Result<Json> RealValue(double value, const std::string& path, Fault* fault) {
  if (!std::isfinite(value)) {
    return FieldError(fault, path, "{} must be a finite number", path);
  }
  return Json(value);
}

Result<Json> TextValue(const FieldDescriptor& field,
                       const std::string& text,
                       const std::string& path,
                       Fault* fault) {
  if (!field.options().GetExtension(v1::json)) {
    return Json(text);
  }
  auto parsed = ParseJsonObject(R"({"value":)" + text + "}", fault);
  if (!parsed.ok() || parsed->size() != 1) {
    fault->param.clear();
    fault->code.clear();
    return FieldError(fault, path, "{} must be JSON text", path);
  }
  return std::move(parsed->front());
}

/// The value of a field that is not repeated (index -1), or one of its values.
Result<Json> OneValue(const Message& message,
                      const FieldDescriptor& field,
                      int index,
                      const std::string& path,
                      Fault* fault) {
  const Reflection& get = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Json(one ? get.GetInt32(message, &field)
                      : get.GetRepeatedInt32(message, &field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return Json(one ? get.GetInt64(message, &field)
                      : get.GetRepeatedInt64(message, &field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return RealValue(
          one ? get.GetDouble(message, &field) : get.GetRepeatedDouble(message, &field, index),
          path,
          fault);
    case FieldDescriptor::CPPTYPE_BOOL:
      return Json(one ? get.GetBool(message, &field) : get.GetRepeatedBool(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextValue(
          field,
          one ? get.GetString(message, &field) : get.GetRepeatedString(message, &field, index),
          path,
          fault);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageValue(
          one ? get.GetMessage(message, &field) : get.GetRepeatedMessage(message, &field, index),
          path,
          fault);
    default:  // no request has other types (a test walks over all of them)
      return FieldError(fault, path, "{} has a type that requests do not use", path);
  }
}

Result<Json> MapValue(const Message& message,
                      const FieldDescriptor& field,
                      const std::string& path,
                      Fault* fault) {
  const Reflection& get = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  Json object = Json::object();
  for (int i = 0; i < get.FieldSize(message, &field); ++i) {
    const Message& entry = get.GetRepeatedMessage(message, &field, i);
    INFERD_ASSIGN(const Json name, OneValue(entry, key, -1, path, fault));
    const std::string text = name.is_string() ? name.get<std::string>() : name.dump();
    INFERD_ASSIGN(object[text], OneValue(entry, value, -1, path + "." + text, fault));
  }
  return object;
}

Result<Json> FieldValue(const Message& message,
                        const FieldDescriptor& field,
                        const std::string& path,
                        Fault* fault) {
  if (field.is_map()) {
    return MapValue(message, field, path, fault);
  }
  if (!field.is_repeated()) {
    return OneValue(message, field, -1, path, fault);
  }
  Json list = Json::array();
  const int size = message.GetReflection()->FieldSize(message, &field);
  list.get_ref<Json::array_t&>().reserve(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    INFERD_ASSIGN(Json value, OneValue(message, field, i, fmt::format("{}[{}]", path, i), fault));
    list.push_back(std::move(value));
  }
  return list;
}

Result<Json> MessageValue(const Message& message, const std::string& path, Fault* fault) {
  if (message.GetDescriptor()->options().GetExtension(v1::bare)) {
    return FieldValue(message, *message.GetDescriptor()->field(0), path, fault);
  }
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  Json object = Json::object();
  for (const FieldDescriptor* const field : fields) {
    const std::string& other = field->options().GetExtension(v1::as);
    const std::string& name = other.empty() ? field->name() : other;
    const std::string at = path.empty() ? name : path + "." + name;
    if (object.contains(name)) {
      return FieldError(fault, at, "{} and {} exclude each other", at, field->name());
    }
    INFERD_ASSIGN(object[name], FieldValue(message, *field, at, fault));
  }
  return object;
}

}  // namespace

Result<Json> ToJson(const Message& message, Fault* fault) {
  return MessageValue(message, "", fault);
}

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// POST /v1/served_model_name: other names for the model, from now on. What runs is not touched:
// requests are answered under the name that they began with.
#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "api/server/endpoints.h"
#include "base/error.h"
#include "base/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

constexpr const char* kField = "served_model_name";

bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= limits::kServedNameBytes &&
         std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

Result<std::vector<std::string>> ReadNames(const nlohmann::ordered_json& body, Fault* fault) {
  const auto* const given = Fields(body, fault).Find(kField);
  const auto list = given == nullptr     ? nlohmann::ordered_json::array()
                    : given->is_string() ? nlohmann::ordered_json::array({*given})
                                         : *given;
  if (!list.is_array() || list.empty() || list.size() > limits::kServedNames) {
    return FieldError(
        fault, kField, "{} must be a name, or a list of 1 to {}", kField, limits::kServedNames);
  }
  std::vector<std::string> names;
  for (const auto& item : list) {
    const std::string path = fmt::format("{}[{}]", kField, names.size());
    if (!item.is_string() || !IsName(item.get<std::string>())) {
      return FieldError(fault,
                        path,
                        "{} must be a text of 1 to {} bytes without control characters",
                        path,
                        limits::kServedNameBytes);
    }
    names.push_back(item.get<std::string>());
    if (std::find(names.begin(), names.end() - 1, names.back()) != names.end() - 1) {
      return FieldError(fault, path, "{} is a name that is there already", path);
    }
  }
  return names;
}

}  // namespace

Result<Outcome> SetServedModelName(const ServerContext& context,
                                   const HttpRequest& request,
                                   Fault* fault) {
  if (context.admission == nullptr || !context.admission->has_key()) {
    return PermissionDenied(
        "Only a key with the scope admin may change the model's names, and this server has no "
        "keys; "
        "start it with --api-key-file");
  }
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  INFERD_ASSIGN(std::vector<std::string> names, ReadNames(body, fault));
  HttpResponse response;
  response.body = nlohmann::ordered_json{{kField, names}}.dump();
  log::Info("api",
            "key {} changes the model's names to {}",
            context.admission->key_name(),
            fmt::join(names, ", "));
  context.model.names->Set(std::move(names));
  return Outcome(std::move(response));
}

}  // namespace inferd::api

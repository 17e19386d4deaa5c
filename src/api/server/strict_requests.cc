// SPDX-License-Identifier: Apache-2.0
#include "api/server/strict_requests.h"

#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "api/server/openapi.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::set<std::string, std::less<>>;

/// By path: the fields of the body that the OpenAPI document names.
const std::map<std::string_view, Names>& DocumentedFields() {
  static const std::map<std::string_view, Names> fields = [] {
    std::map<std::string_view, Names> made;
    const Json schemas = OpenApiSchemas();
    for (const OperationDoc& doc : OperationDocs()) {
      const auto schema = schemas.find(std::string(doc.request));
      if (doc.request.empty() || schema == schemas.end() || !schema->contains("properties")) {
        continue;
      }
      for (const auto& property : (*schema)["properties"].items()) {
        made[doc.path].insert(property.key());
      }
    }
    return made;
  }();
  return fields;
}

}  // namespace

bool IsCheckedStrictly(const Endpoint& endpoint) {
  // KServe's requests may carry what they like; files are forms; these two act at once.
  constexpr std::string_view kOthers[] = {
      "/abort", "/abort_requests", "/v1/batches", "/v1/files", "/ping"};
  return endpoint.method == "POST" && !endpoint.path.starts_with("/v2/models/") &&
         !endpoint.path.starts_with("/v2/repository/") &&
         endpoint.path.find('{') == std::string_view::npos &&
         std::ranges::find(kOthers, endpoint.path) == std::end(kOthers);
}

Result<> RefuseUnknownFields(const Endpoint& endpoint,
                             std::string_view body,
                             std::span<const std::string> asked,
                             Fault* fault) {
  INFERD_ASSIGN(const Json json, ParseJsonObject(body, fault));
  const auto documented = DocumentedFields().find(endpoint.path);
  for (const auto& field : json.items()) {
    const std::string& name = field.key();
    const bool known =
        std::ranges::find(asked, name) != asked.end() ||
        (documented != DocumentedFields().end() && documented->second.contains(name));
    if (!known) {
      fault->code = "unknown_parameter";
      return FieldError(fault,
                        name,
                        "Unknown field '{}'. This server was started with --strict-requests; "
                        "/openapi.json lists what it knows",
                        name);
    }
  }
  return {};
}

}  // namespace inferd::api

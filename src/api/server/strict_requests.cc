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
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// Objects within a body of which all fields are known here, whether or not a handler looks at
/// them: what stands beside is a mistake.
struct KnownObject {
  std::string_view path;
  std::string_view fields[6];  // empty: no more
};
constexpr KnownObject kKnownObjects[] = {
    {"stream_options", {"include_usage", "continuous_usage_stats", "include_obfuscation"}},
    {"response_format", {"type", "json_schema"}},
    {"response_format.json_schema", {"name", "description", "schema", "strict"}},
    {"structured_outputs", {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}},
    {"reasoning", {"effort", "summary", "generate_summary"}},
    {"text", {"format", "verbosity"}},
    {"thinking", {"type", "budget_tokens"}},
};

/// The object at a dotted path of a body; nullptr: there is none.
const Json* ObjectAt(const Json& body, std::string_view path) {
  const Json* at = &body;
  while (at->is_object()) {
    const std::string_view name = path.substr(0, path.find('.'));
    const auto found = at->find(name);
    if (found == at->end()) {
      return nullptr;
    }
    at = &*found;
    if (name.size() == path.size()) {
      return at->is_object() ? at : nullptr;
    }
    path.remove_prefix(name.size() + 1);
  }
  return nullptr;
}

Error UnknownField(const std::string& path, Fault* fault) {
  fault->code = "unknown_parameter";
  return FieldError(fault,
                    path,
                    "Unknown field '{}'. This server was started with --strict-requests; "
                    "/openapi.json lists what it knows",
                    path);
}

Result<> RefuseUnknownFields(std::string_view path,
                             std::string_view body,
                             std::span<const std::string> asked,
                             Fault* fault) {
  INFERD_ASSIGN(const Json json, ParseJsonObject(body, fault));
  const auto was_asked = [&](const std::string& name) {
    return std::ranges::find(asked, name) != asked.end();
  };
  const auto documented = DocumentedFields().find(path);
  for (const auto& field : json.items()) {
    const std::string& name = field.key();
    if (!was_asked(name) &&
        (documented == DocumentedFields().end() || !documented->second.contains(name))) {
      return UnknownField(name, fault);
    }
  }
  for (const KnownObject& known : kKnownObjects) {
    const Json* const object = ObjectAt(json, known.path);
    if (object == nullptr) {
      continue;
    }
    for (const auto& field : object->items()) {
      const std::string name = std::string(known.path) + "." + field.key();
      const auto* const found = std::ranges::find(known.fields, field.key());
      if (!was_asked(name) && (found == std::end(known.fields) || found->empty())) {
        return UnknownField(name, fault);
      }
    }
  }
  return {};
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

Result<Outcome> CallStrictly(Handler handler,
                             const ServerContext& context,
                             const HttpRequest& request,
                             Fault* fault) {
  std::vector<std::string> asked;
  fault->asked = &asked;
  auto outcome = CallHandler(handler, context, request, fault);
  fault->asked = nullptr;
  if (outcome.ok()) {
    INFERD_TRY(RefuseUnknownFields(request.path, request.body, asked, fault));
  }
  return outcome;
}

}  // namespace inferd::api

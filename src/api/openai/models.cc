// SPDX-License-Identifier: Apache-2.0
// GET /v1/models and /v1/models/{id}.
#include "api/core/generate_params.h"
#include "api/core/json_writer.h"
#include "api/openai/endpoints.h"
#include "base/error.h"

#include <string>

namespace inferd::api {
namespace {

void AppendModel(const ServerContext& context, std::string_view name, std::string* out) {
  *out += R"({"id":)";
  AppendQuoted(name, out);
  *out += R"(,"object":"model","created":)";
  AppendInt(context.model.created_s, out);
  *out += R"(,"owned_by":"inferd","root":)";
  AppendQuoted(context.model.name(), out);
  *out += R"(,"parent":null,"max_model_len":)";
  AppendInt(context.service.max_model_len(), out);
  *out += '}';
}

}  // namespace

Result<Outcome> ListModels(const ServerContext& context,
                           const HttpRequest& /*request*/,
                           Fault* /*fault*/) {
  HttpResponse response;
  response.body = R"({"object":"list","data":[)";
  for (const auto& name : context.model.names->All()) {
    if (Fault ignored; !MayUseModel(context, name, &ignored).ok()) {
      continue;  // this key cannot use it under this name
    }
    if (response.body.back() == '}') {
      response.body += ',';
    }
    AppendModel(context, name, &response.body);
  }
  response.body += "]}";
  return Outcome(std::move(response));
}

Result<Outcome> GetModel(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  const std::string name =
      PercentDecoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (!context.model.Answers(name)) {
    *fault = {"model", "model_not_found"};
    return NotFound("This server has no model of that name; it serves `{}`", context.model.name());
  }
  INFERD_TRY(MayUseModel(context, name, fault));
  HttpResponse response;
  AppendModel(context, name, &response.body);
  return Outcome(std::move(response));
}

}  // namespace inferd::api

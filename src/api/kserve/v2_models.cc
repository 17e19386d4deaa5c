// SPDX-License-Identifier: Apache-2.0
// GET /v2, /v2/health/.., /v2/models/.. and the repository calls: what is here and whether it is
// ready.
#include "api/core/json_writer.h"
#include "api/kserve/endpoints.h"
#include "api/kserve/infer.h"
#include "api/kserve/v2_path.h"
#include "base/error.h"
#include "inferd/version.h"

#include <fmt/format.h>

#include <string>

namespace inferd::api {
namespace {

bool Ready(const ServerContext& context) {
  return context.service.phase() == leader::Phase::kReady && !context.draining;
}

/// {"live":true} and its like.
Outcome Flag(std::string_view name, bool good) {
  HttpResponse response;
  response.status = good ? 200 : 503;
  response.body = fmt::format(R"({{"{}":{}}})", name, good);
  return response;
}

void AppendTensor(std::string_view name, std::string_view datatype, int extent, std::string* out) {
  *out += R"({"name":)";
  AppendQuoted(name, out);
  *out += R"(,"datatype":)";
  AppendQuoted(datatype, out);
  *out += R"(,"shape":[)";
  AppendInt(extent, out);
  *out += "]}";
}

}  // namespace

std::string V2ErrorBody(const Error& error, const Fault& /*fault*/) {
  std::string body = R"({"error":)";
  AppendQuoted(PublicMessage(error), &body);
  body += '}';
  return body;
}

Result<Outcome> V2Server(const ServerContext& /*context*/,
                         const HttpRequest& /*request*/,
                         Fault* /*fault*/) {
  HttpResponse response;
  response.body = R"({"name":"inferd","version":")" + std::string(kVersion) +
                  R"(","extensions":["generate","model_repository","binary_tensor_data"]})";
  return Outcome(std::move(response));
}

Result<Outcome> V2Live(const ServerContext& context,
                       const HttpRequest& /*request*/,
                       Fault* /*fault*/) {
  return Flag("live", !context.service.stall());
}

Result<Outcome> V2Ready(const ServerContext& context,
                        const HttpRequest& /*request*/,
                        Fault* /*fault*/) {
  return Flag("ready", Ready(context));
}

Result<Outcome> V2ModelGet(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  const V2Path path = ParseV2Path(request.path, "/v2/models/");
  INFERD_TRY(CheckModelVersion(context, path.name, path.version, fault));
  if (path.action == "ready") {
    return Flag("ready", Ready(context));
  }
  if (!path.action.empty()) {
    return NotFound("There is nothing to get at {}", request.path.substr(0, 100));
  }
  HttpResponse response;
  std::string& body = response.body;
  body = R"({"name":)";
  AppendQuoted(path.name, &body);
  body += R"(,"versions":[)";
  AppendQuoted(kModelVersion, &body);
  body += R"(],"platform":"inferd","inputs":[)";
  for (const TensorInfo& info : InferInputs()) {
    body += body.back() == '}' ? "," : "";
    AppendTensor(info.name, info.datatype, info.optional ? 1 : -1, &body);
  }
  body += R"(],"outputs":[)";
  AppendTensor(kTextOutput, "BYTES", -1, &body);
  body += "]}";
  return Outcome(std::move(response));
}

Result<Outcome> V2Index(const ServerContext& context,
                        const HttpRequest& /*request*/,
                        Fault* /*fault*/) {
  HttpResponse response;
  response.body = "[";
  for (const std::string& name : context.model.names->All()) {
    response.body += response.body.back() == '}' ? "," : "";
    response.body += R"({"name":)";
    AppendQuoted(name, &response.body);
    response.body += R"(,"version":)";
    AppendQuoted(kModelVersion, &response.body);
    response.body += Ready(context) ? R"(,"state":"READY","reason":""})"
                                    : R"(,"state":"UNAVAILABLE","reason":"see /readyz"})";
  }
  response.body += ']';
  return Outcome(std::move(response));
}

Result<Outcome> V2Repository(const ServerContext& context,
                             const HttpRequest& request,
                             Fault* fault) {
  const V2Path path = ParseV2Path(request.path, "/v2/repository/models/");
  INFERD_TRY(CheckModelVersion(context, path.name, path.version, fault));
  if (path.action == "load") {
    return Flag("ready", Ready(context));  // it is loaded, or on its way
  }
  if (path.action == "unload") {
    return Error(
        Code::kFailedPrecondition,
        "This server holds one model for as long as it runs; stop the server to unload it");
  }
  return NotFound("There is nothing at {}", request.path.substr(0, 100));
}

}  // namespace inferd::api

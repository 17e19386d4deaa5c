// SPDX-License-Identifier: Apache-2.0
// GET and DELETE /v1/responses/{id}, POST .../cancel, GET .../input_items.
#include "api/core/fields.h"
#include "api/core/json_writer.h"
#include "api/core/owner.h"
#include "api/http/list_page.h"
#include "api/http/running_requests.h"
#include "api/responses/endpoints.h"
#include "api/responses/response_store.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<std::shared_ptr<const StoredResponse>> Find(const ServerContext& context,
                                                   const HttpRequest& request,
                                                   Fault* fault) {
  auto stored = context.responses == nullptr
                    ? nullptr
                    : context.responses->Get(request.path_parameter, OwnerOf(context));
  if (stored == nullptr) {
    *fault = {"response_id", "response_not_found"};
    return NotFound("Response with id '{}' not found", request.path_parameter.substr(0, 100));
  }
  return stored;
}

}  // namespace

Result<Outcome> GetResponse(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_ASSIGN(const auto stored, Find(context, request, fault));
  if (QueryValue(request.query, "stream") == "true") {
    *fault = {"stream", "unsupported_parameter"};
    return Unimplemented("stream is not supported here: only background responses stream again");
  }
  HttpResponse response;
  response.body = stored->body;
  return Outcome(std::move(response));
}

Result<Outcome> DeleteResponse(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_TRY(Find(context, request, fault));
  context.responses->Erase(request.path_parameter);
  HttpResponse response;
  response.body = R"({"id":)";
  AppendQuoted(request.path_parameter, &response.body);
  response.body += R"(,"object":"response","deleted":true})";
  return Outcome(std::move(response));
}

Result<Outcome> CancelResponse(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_ASSIGN(const auto stored, Find(context, request, fault));
  if (!stored->running) {
    return FieldError(fault,
                      "response_id",
                      "The response '{}' is complete and cannot be cancelled",
                      request.path_parameter);
  }
  if (context.running != nullptr) {
    context.running->Abort(request.path_parameter);
  }
  Json body = Json::parse(stored->body);
  body["status"] = "cancelled";
  HttpResponse response;
  response.body = body.dump();
  return Outcome(std::move(response));
}

Result<Outcome> ListInputItems(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_ASSIGN(const auto stored, Find(context, request, fault));
  INFERD_ASSIGN(const ListPage page,
                ReadListPage(request.query, limits::kInputItemsPerPage, limits::kUsualPage, fault));
  Json items = Json::parse(stored->input_items);
  std::vector<std::string_view> ids;
  for (const Json& item : items) {
    ids.push_back(item["id"].get_ref<const std::string&>());
  }
  const auto cut = CutPage(ids, page);
  if (!cut) {
    return FieldError(fault, "after", "after names no item of this response");
  }
  std::vector<Json> shown;
  for (const std::size_t item : cut->items) {
    shown.push_back(std::move(items[item]));
  }
  HttpResponse response;
  response.body = ListObject(std::move(shown), cut->has_more);
  return Outcome(std::move(response));
}

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// POST /abort and /abort_requests: ends running requests by their X-Request-Id or by the id of
// their reply. Their clients get what was said so far, with finish_reason "abort".
#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/http/running_requests.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace inferd::api {
namespace {

Result<std::vector<std::string>> ReadNames(const Fields& fields) {
  Fault* const fault = fields.fault();
  const auto* const list = fields.Find("request_ids");
  if (list == nullptr) {
    INFERD_ASSIGN(std::string name, fields.NeededString("request_id"));
    return std::vector<std::string>{std::move(name)};
  }
  if (!list->is_array() || list->size() > limits::kAbortNames) {
    return FieldError(fault,
                      "request_ids",
                      "request_ids must be a list of at most {} strings",
                      limits::kAbortNames);
  }
  std::vector<std::string> names;
  for (const auto& item : *list) {
    if (!item.is_string()) {
      const std::string path = fmt::format("request_ids[{}]", names.size());
      return FieldError(fault, path, "{} must be a string, not {}", path, item.type_name());
    }
    names.push_back(item.get<std::string>());
  }
  return names;
}

}  // namespace

Result<Outcome> AbortRequests(const ServerContext& context,
                              const HttpRequest& request,
                              Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  INFERD_ASSIGN(const auto names, ReadNames(Fields(body, fault)));
  std::size_t aborted = 0;
  for (const std::string& name : names) {
    aborted += context.running == nullptr ? 0 : context.running->Abort(name);
  }
  HttpResponse response;
  response.body = R"({"aborted":)";
  AppendInt(static_cast<std::int64_t>(aborted), &response.body);
  response.body += '}';
  return Outcome(std::move(response));
}

}  // namespace inferd::api

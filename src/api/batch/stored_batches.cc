// SPDX-License-Identifier: Apache-2.0
// GET /v1/batches, GET /v1/batches/{id}, POST /v1/batches/{id}/cancel.
#include "api/batch/batch_runner.h"
#include "api/batch/endpoints.h"
#include "api/files/file_access.h"
#include "api/http/list_page.h"

#include <nlohmann/json.hpp>

#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Outcome Answer(const BatchRecord& record) { return JsonAnswer(BatchObject(record).dump()); }

}  // namespace

Result<Outcome> ListBatches(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_TRY(NeedFiles(context, fault));
  INFERD_ASSIGN(const ListPage page,
                ReadListPage(request.query, limits::kBatchesPerPage, limits::kUsualPage, fault));
  const auto found = context.batches->store().List(OwnerOf(context), page);
  if (!found) {
    return FieldError(fault, "after", kNoSuchItem);
  }
  std::vector<Json> items;
  for (const BatchRecord& record : found->records) {
    items.push_back(BatchObject(record));
  }
  return JsonAnswer(ListObject(std::move(items), found->has_more));
}

Result<Outcome> GetBatch(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_TRY(NeedFiles(context, fault));
  auto found = context.batches->store().Find(OwnerOf(context), request.path_parameter);
  if (!found.ok()) {
    *fault = {"batch_id", "batch_not_found"};
    return found.error();
  }
  return Answer(*found);
}

Result<Outcome> CancelBatch(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_TRY(NeedFiles(context, fault));
  auto cancelled = context.batches->Cancel(OwnerOf(context), request.path_parameter);
  if (!cancelled.ok()) {
    const bool missing = cancelled.error().code() == Code::kNotFound;
    *fault = {"batch_id", missing ? "batch_not_found" : "invalid_value"};
    return cancelled.error();
  }
  return Answer(*cancelled);
}

}  // namespace inferd::api

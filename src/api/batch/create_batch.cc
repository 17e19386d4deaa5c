// SPDX-License-Identifier: Apache-2.0
// POST /v1/batches.
#include "api/batch/batch_runner.h"
#include "api/batch/endpoints.h"
#include "api/core/fields.h"
#include "api/core/json_parse.h"
#include "api/core/metadata.h"
#include "api/files/file_access.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// Seconds that the files of answers are kept; 0: for ever.
Result<std::int64_t> ReadOutputExpiry(const Fields& fields) {
  const Json* const expiry = fields.Find("output_expires_after");
  if (expiry == nullptr) {
    return std::int64_t{0};
  }
  const std::string prefix = "output_expires_after.";
  if (!expiry->is_object()) {
    return FieldError(
        fields.fault(), "output_expires_after", "output_expires_after must be an object");
  }
  const Fields inner(*expiry, fields.fault(), prefix);
  INFERD_ASSIGN(const std::string anchor, inner.NeededString("anchor"));
  if (anchor != "created_at") {
    return FieldError(fields.fault(), prefix + "anchor", "{}anchor must be created_at", prefix);
  }
  const IntLimit limit{"seconds", limits::kExpirySeconds.min, limits::kExpirySeconds.max};
  INFERD_ASSIGN(const auto seconds, inner.Int(limit));
  if (!seconds) {
    return FieldError(fields.fault(), prefix + "seconds", "{}seconds is missing", prefix);
  }
  return *seconds;
}

Result<BatchRecord> ReadBatch(const ServerContext& context, const Fields& fields) {
  Fault* const fault = fields.fault();
  BatchRecord record;
  record.owner = OwnerOf(context);
  INFERD_ASSIGN(record.input_file_id, fields.NeededString("input_file_id"));
  INFERD_ASSIGN(record.endpoint, fields.NeededString("endpoint"));
  if (!IsBatchUrl(record.endpoint)) {
    return FieldError(fault, "endpoint", "endpoint must be one of {}", BatchUrls());
  }
  INFERD_ASSIGN(const std::string window, fields.NeededString("completion_window"));
  if (window != "24h") {
    return FieldError(fault, "completion_window", "completion_window must be 24h");
  }
  INFERD_ASSIGN(const Json* const metadata, ReadMetadata(fields));
  record.metadata = metadata == nullptr ? "null" : metadata->dump();
  INFERD_ASSIGN(record.output_expiry_s, ReadOutputExpiry(fields));
  auto file = context.files->Find(record.owner, record.input_file_id);
  if (!file.ok()) {
    *fault = {"input_file_id", "file_not_found"};
    return file.error();
  }
  if (file->purpose != "batch") {
    return FieldError(fault,
                      "input_file_id",
                      "the file {} has the purpose {}; a batch needs one of purpose batch",
                      file->id,
                      file->purpose);
  }
  return record;
}

}  // namespace

Result<Outcome> CreateBatch(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_TRY(NeedFiles(context, fault));
  INFERD_ASSIGN(const Json body, ParseJsonObject(request.body, fault));
  INFERD_ASSIGN(BatchRecord record, ReadBatch(context, Fields(body, fault)));
  INFERD_ASSIGN(const BatchRecord made, context.batches->Create(std::move(record)));
  HttpResponse response;
  response.body = BatchObject(made).dump();
  return Outcome(std::move(response));
}

}  // namespace inferd::api

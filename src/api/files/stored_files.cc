// SPDX-License-Identifier: Apache-2.0
// GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content.
#include "api/files/endpoints.h"
#include "api/files/file_access.h"
#include "api/http/list_page.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<FileRecord> FindFile(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_ASSIGN(const FileStore* const store, NeedFiles(context, fault));
  auto found = store->Find(OwnerOf(context), request.path_parameter);
  if (!found.ok()) {
    *fault = {"file_id", "file_not_found"};
  }
  return found;
}

}  // namespace

Result<Outcome> ListFiles(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const FileStore* const store, NeedFiles(context, fault));
  INFERD_ASSIGN(
      const ListPage page,
      ReadListPage(request.query, limits::kFilesPerPage, limits::kFilesPerPage.max, fault));
  const auto found =
      store->List(OwnerOf(context), QueryValue(request.query, "purpose").value_or(""), page);
  if (!found) {
    return FieldError(fault, "after", kNoSuchItem);
  }
  std::vector<Json> items;
  for (const FileRecord& file : found->records) {
    items.push_back(FileObject(file));
  }
  return JsonAnswer(ListObject(std::move(items), found->has_more));
}

Result<Outcome> GetFile(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const FileRecord file, FindFile(context, request, fault));
  return JsonAnswer(FileObject(file).dump());
}

Result<Outcome> GetFileContent(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_ASSIGN(const FileRecord file, FindFile(context, request, fault));
  HttpResponse response;
  auto body = std::make_shared<FileBody>();
  INFERD_ASSIGN(body->fd, context.files->OpenData(file));
  body->bytes = file.bytes;
  response.file = std::move(body);
  // What a client has written must not become a page of this server.
  response.content_type = "application/octet-stream";
  response.headers = {{"X-Content-Type-Options", "nosniff"}, {"Content-Disposition", "attachment"}};
  return Outcome(std::move(response));
}

Result<Outcome> DeleteFile(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const FileRecord file, FindFile(context, request, fault));
  if (auto removed = context.files->Remove(file.owner, file.id); !removed.ok()) {
    *fault = {"file_id", removed.error().code() == Code::kAborted ? "file_in_use" : ""};
    return removed.error();
  }
  return JsonAnswer(Json{{"id", file.id}, {"object", "file"}, {"deleted", true}}.dump());
}

}  // namespace inferd::api

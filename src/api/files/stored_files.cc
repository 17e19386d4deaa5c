// SPDX-License-Identifier: Apache-2.0
// GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content.
#include "api/files/endpoints.h"
#include "api/files/file_access.h"
#include "api/http/list_page.h"

#include <nlohmann/json.hpp>

#include <utility>

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
  const auto purpose = QueryValue(request.query, "purpose");
  std::vector<Json> items;
  for (const FileRecord& file : store->List(OwnerOf(context))) {
    if (!purpose || *purpose == file.purpose) {
      items.push_back(FileObject(file));
    }
  }
  INFERD_ASSIGN(std::string list, ListObject(std::move(items), page, kNoSuchItem, fault));
  return JsonAnswer(std::move(list));
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
  INFERD_ASSIGN(response.body, context.files->Read(file));
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

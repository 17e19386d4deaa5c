// SPDX-License-Identifier: Apache-2.0
#include "api/files/file_access.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace inferd::api {

using Json = nlohmann::ordered_json;

Result<FileStore*> NeedFiles(const ServerContext& context, Fault* fault) {
  if (context.files == nullptr) {
    fault->code = "files_disabled";
    return NotFound("This server keeps no files and no batches; start it with --files-dir FOLDER");
  }
  return context.files;
}

Json FileObject(const FileRecord& file) {
  Json object = {{"id", file.id},
                 {"object", "file"},
                 {"bytes", file.bytes},
                 {"created_at", file.created_at},
                 {"filename", file.filename},
                 {"purpose", file.purpose},
                 {"status", "processed"},
                 {"status_details", nullptr}};
  if (file.expires_at != 0) {
    object["expires_at"] = file.expires_at;
  }
  return object;
}

Outcome JsonAnswer(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
#include "api/files/file_access.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
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

Result<std::string> ListObject(std::vector<Json> items, const ListPage& page, Fault* fault) {
  if (!page.ascending) {
    std::reverse(items.begin(), items.end());
  }
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::find_if(
        items.begin(), items.end(), [&](const Json& item) { return item["id"] == page.after; });
    if (first == items.end()) {
      return FieldError(fault, "after", "after names nothing in this list");
    }
    ++first;
  }
  const auto count = std::min<std::int64_t>(page.limit, items.end() - first);
  const Json data(Json::array_t(first, first + count));
  const Json list = {{"object", "list"},
                     {"data", data},
                     {"first_id", data.empty() ? Json() : data.front()["id"]},
                     {"last_id", data.empty() ? Json() : data.back()["id"]},
                     {"has_more", first + count != items.end()}};
  return list.dump();
}

}  // namespace inferd::api

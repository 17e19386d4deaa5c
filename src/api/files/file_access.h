// SPDX-License-Identifier: Apache-2.0
// What the endpoints of files and of batches have in common: the store, whose files a caller may
// see, and how lists look.
#pragma once

#include "api/core/context.h"
#include "api/core/error_map.h"
#include "api/core/owner.h"
#include "api/files/file_store.h"
#include "api/http/list_page.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace inferd::api {

/// The store, or an error that says how to have one.
Result<FileStore*> NeedFiles(const ServerContext& context, Fault* fault);

/// The file object of OpenAI's API.
nlohmann::ordered_json FileObject(const FileRecord& file);

/// The page of `items` (objects with an id, oldest first) as a list object.
Result<std::string> ListObject(std::vector<nlohmann::ordered_json> items,
                               const ListPage& page,
                               Fault* fault);

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// What the endpoints of files and of batches have in common: the store, whose files a caller may
// see, and how answers look.
#pragma once

#include "api/core/context.h"
#include "api/core/error_map.h"
#include "api/core/owner.h"
#include "api/files/file_store.h"
#include "api/http/endpoint.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace inferd::api {

/// The store, or an error that says how to have one.
Result<FileStore*> NeedFiles(const ServerContext& context, Fault* fault);

/// The file object of OpenAI's API.
nlohmann::ordered_json FileObject(const FileRecord& file);

/// 200 with this body.
Outcome JsonAnswer(std::string body);

/// What a list of files or batches says of an `after` that is none of them.
inline constexpr char kNoSuchItem[] = "after names nothing in this list";

}  // namespace inferd::api

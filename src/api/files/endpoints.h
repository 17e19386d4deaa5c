// SPDX-License-Identifier: Apache-2.0
// The endpoints of OpenAI's Files API.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> UploadFile(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> ListFiles(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetFile(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetFileContent(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> DeleteFile(const ServerContext&, const HttpRequest&, Fault*);

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// The endpoints of OpenAI's Batch API.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> CreateBatch(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> ListBatches(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetBatch(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> CancelBatch(const ServerContext&, const HttpRequest&, Fault*);

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// A request as handlers see it and an answer as they give it; plain data.
#pragma once

#include "base/file.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

struct HttpRequest {
  std::string method;
  std::string path;            // of the target, undecoded, without query
  std::string query;           // behind '?', undecoded
  std::string path_parameter;  // what stands for "{id}" in the endpoint's path
  std::string host;
  std::string body;
  std::string content_type;
  std::string request_id;  // the client's X-Request-Id if it is usable, else made here
  std::string key;         // of Authorization: Bearer, x-api-key or api-key; empty: none was given
  std::string tenant;      // for whom a gateway says that it asks (kTenantHeaders); empty: nobody
  std::string tenant_weight;            // X-Inferd-Weight
  std::string objective;                // X-Gateway-Inference-Objective
  std::string session;                  // X-Session-Id; empty: none, or not a usable one
  std::string origin;                   // a page's, with cross-origin requests
  std::string preflight_headers;        // Access-Control-Request-Headers
  std::string traceparent;              // empty: none, or not a valid one
  std::string load_metrics;             // endpoint-load-metrics-format
  int version_minor = 1;                // HTTP/1.x
  std::string inference_header_length;  // Inference-Header-Content-Length, of KServe's clients
  bool keep_alive = true;
  std::shared_ptr<const void> upload_place;  // of a long body: held until its bytes are gone
};

/// A body that is sent from a file, piece by piece.
struct FileBody {
  base::UniqueFd fd;
  std::int64_t bytes = 0;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::shared_ptr<const FileBody> file;  // the body instead, when there is one
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // besides the usual ones
};

/// %XX become bytes; what is no such escape stays as it is.
std::string PercentDecoded(std::string_view text);

/// "OK", "Bad Request", ...
const char* ReasonPhrase(int status);

/// Status line and headers, with the empty line. `content_length` < 0: none is announced (chunked
/// or until close). `more`: header lines that go with whatever answer this request gets.
std::string ResponseHead(const HttpResponse& response,
                         const HttpRequest& request,
                         long content_length,
                         bool keep_alive,
                         std::string_view more = {});

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// A request as handlers see it and an answer as they give it; plain data.
#pragma once

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
  std::string request_id;               // the client's X-Request-Id if it is usable, else made here
  std::string inference_header_length;  // Inference-Header-Content-Length, of KServe's clients
  int version_minor = 1;                // HTTP/1.x
  bool keep_alive = true;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // besides the usual ones
};

/// %XX become bytes; what is no such escape stays as it is.
std::string PercentDecoded(std::string_view text);

/// "OK", "Bad Request", ...
const char* ReasonPhrase(int status);

/// Status line and headers, with the empty line. `content_length` < 0: none is announced (chunked
/// or until close).
std::string ResponseHead(const HttpResponse& response,
                         const HttpRequest& request,
                         long content_length,
                         bool keep_alive);

}  // namespace inferd::api

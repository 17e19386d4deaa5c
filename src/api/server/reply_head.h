// SPDX-License-Identifier: Apache-2.0
// Header lines that go with an answer whatever it is: whether a web page may read it, what the
// caller's key has left, how loaded the server is. Each line ends in CRLF.
#pragma once

#include "api/http/http_message.h"
#include "leader/inference_service.h"
#include "tenant/quota.h"

#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// Nothing unless `request` comes from a page of an allowed origin (exact match; "*" allows all).
/// With a preflight also what the page may send.
std::string CorsLines(const std::vector<std::string>& allowed_origins,
                      const HttpRequest& request,
                      std::string_view methods);

/// x-ratelimit-{limit,remaining,reset}-{requests,tokens}, as OpenAI writes them.
std::string RateLimitLines(const tenant::LimitState& limits);

/// "250ms", "12.5s", "1m30s".
std::string Duration(std::int64_t ms);

/// endpoint-load-metrics in ORCA's TEXT or JSON form; nothing for another format.
std::string LoadMetricsLine(std::string_view format, const leader::InferenceService& service);

}  // namespace inferd::api

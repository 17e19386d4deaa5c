// SPDX-License-Identifier: Apache-2.0
#include "api/server/reply_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::string_view kExposed =
    "X-Request-Id, X-Session-Id, X-Inferd-Model-Version, Retry-After, Retry-After-Ms, "
    "X-Should-Retry, X-Inferd-Rejected-Reason, "
    "X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    "X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens";

/// A list of field names as a browser sends it; anything else is not repeated.
bool IsNameList(std::string_view text) {
  return !text.empty() && text.size() <= 2000 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  });
}

void AppendRate(std::string_view what, const tenant::RateState& rate, std::string* lines) {
  if (rate.limit > 0) {
    *lines += fmt::format(
        "x-ratelimit-limit-{0}: {1}\r\nx-ratelimit-remaining-{0}: {2}\r\n"
        "x-ratelimit-reset-{0}: {3}\r\n",
        what,
        rate.limit,
        rate.remaining,
        Duration(rate.reset_ms));
  }
}

}  // namespace

std::string CorsLines(const std::vector<std::string>& allowed_origins,
                      const HttpRequest& request,
                      std::string_view methods) {
  if (allowed_origins.empty()) {
    return {};
  }
  const auto has = [&](std::string_view origin) {
    return std::find(allowed_origins.begin(), allowed_origins.end(), origin) !=
           allowed_origins.end();
  };
  const bool any = has("*");
  std::string lines = any ? "" : "Vary: Origin\r\n";
  if (request.origin.empty() || (!any && !has(request.origin))) {
    return lines;
  }
  lines += fmt::format("Access-Control-Allow-Origin: {}\r\n", any ? "*" : request.origin);
  if (request.method != "OPTIONS") {
    return lines + fmt::format("Access-Control-Expose-Headers: {}\r\n", kExposed);
  }
  lines += fmt::format("Access-Control-Allow-Methods: {}\r\nAccess-Control-Max-Age: 600\r\n",
                       methods.empty() ? "GET, POST" : methods);
  if (IsNameList(request.preflight_headers)) {
    lines += "Access-Control-Allow-Headers: " + request.preflight_headers + "\r\n";
  }
  return lines;
}

std::string RateLimitLines(const tenant::LimitState& limits) {
  std::string lines;
  AppendRate("requests", limits.requests, &lines);
  AppendRate("tokens", limits.tokens, &lines);
  return lines;
}

std::string Duration(std::int64_t ms) {
  constexpr std::int64_t kSecond = 1000;
  constexpr std::int64_t kMinute = 60 * kSecond;
  if (ms < kSecond) {
    return fmt::format("{}ms", ms);
  }
  const std::string minutes = ms >= kMinute ? fmt::format("{}m", ms / kMinute) : "";
  return minutes + fmt::format("{:g}s", static_cast<double>(ms % kMinute) * 1e-3);
}

std::string LoadMetricsLine(std::string_view format, const leader::InferenceService& service) {
  if (format != "TEXT" && format != "JSON") {
    return {};
  }
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t used = 0;
  std::int64_t total = 0;
  for (const leader::ReplicaStats& replica : service.stats()) {
    running += replica.running;
    waiting += replica.waiting;
    used += replica.kv_pages_used;
    total += replica.kv_pages_total;
  }
  const double usage = total > 0 ? static_cast<double>(used) / static_cast<double>(total) : 0;
  if (format == "TEXT") {
    return fmt::format(
        "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc={:.4f}, "
        "named_metrics.num_requests_running={}, named_metrics.num_requests_waiting={}\r\n",
        usage,
        running,
        waiting);
  }
  return fmt::format(
      "endpoint-load-metrics: JSON {{\"named_metrics\":{{\"kv_cache_usage_perc\":{:.4f},"
      "\"num_requests_running\":{},\"num_requests_waiting\":{}}}}}\r\n",
      usage,
      running,
      waiting);
}

}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// Sums of the usage ledger, for `inferd usage`. Reads beside a running server.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::tenant {

struct ReportQuery {
  std::int64_t since_unix_ms = 0;
  std::vector<std::string> by = {"key", "day"};  // of key, day, model, version, operation, outcome
};

struct ReportRow {
  std::vector<std::string> group;  // a value for each of `by`
  std::int64_t requests = 0;
  std::int64_t not_done = 0;  // failed, or the client left
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;
  double mean_queue_ms = 0;
  double mean_ttft_ms = 0;
  double mean_total_ms = 0;
};

/// In order of the groups. Days are UTC.
Result<std::vector<ReportRow>> ReportUsage(const std::string& database, const ReportQuery& query);

/// The start of "2026-11-29" (UTC) or the moment "36h" or "7d" before `now_unix_ms`, as
/// milliseconds since 1970.
Result<std::int64_t> ParseSince(std::string_view text, std::int64_t now_unix_ms);

/// A table for people, and one JSON object per row.
std::string ReportTable(const ReportQuery& query, const std::vector<ReportRow>& rows);
std::string ReportJson(const ReportQuery& query, const std::vector<ReportRow>& rows);

}  // namespace inferd::tenant

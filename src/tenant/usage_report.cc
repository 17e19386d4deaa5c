// SPDX-License-Identifier: Apache-2.0
#include "tenant/usage_report.h"

#include "base/error.h"
#include "tenant/sqlite.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

namespace inferd::tenant {
namespace {

constexpr std::pair<std::string_view, std::string_view> kColumns[] = {
    {"key", "key"},
    {"day", "date(unix_ms/1000,'unixepoch')"},
    {"model", "model"},
    {"version", "version"},
    {"operation", "operation"},
    {"outcome", "outcome"},
};

constexpr std::string_view kSums =
    "count(*), sum(outcome<>'done'), sum(prompt_tokens), sum(cached_tokens),"
    "sum(completion_tokens), sum(reasoning_tokens), coalesce(avg(queue_ms),0),"
    "coalesce(avg(ttft_ms),0), avg(total_ms)";

Result<std::string> Select(const std::vector<std::string>& by) {
  std::string columns;
  std::string positions;
  int num_columns = 0;
  for (const std::string& name : by) {
    const auto* const known = std::find_if(std::begin(kColumns),
                                           std::end(kColumns),
                                           [&](const auto& entry) { return entry.first == name; });
    if (known == std::end(kColumns)) {
      return InvalidArgument(
          "--by names '{}'; usage can be summed by key, day, model, version, operation and outcome",
          name);
    }
    columns += std::string(known->second) + ", ";
    positions += (positions.empty() ? "" : ",") + std::to_string(++num_columns);
  }
  std::string sql = "SELECT " + columns + std::string(kSums) + " FROM usage WHERE unix_ms >= ?";
  if (!by.empty()) {
    sql += " GROUP BY " + positions + " ORDER BY " + positions;
  }
  return sql;
}

ReportRow ReadRow(const Statement& statement, std::size_t num_groups) {
  ReportRow row;
  int column = 0;
  for (; column < static_cast<int>(num_groups); ++column) {
    row.group.push_back(statement.Text(column));
  }
  for (std::int64_t* const field : {&row.requests,
                                    &row.not_done,
                                    &row.prompt_tokens,
                                    &row.cached_tokens,
                                    &row.completion_tokens,
                                    &row.reasoning_tokens}) {
    *field = statement.Int(column++);
  }
  for (double* const field : {&row.mean_queue_ms, &row.mean_ttft_ms, &row.mean_total_ms}) {
    *field = statement.Real(column++);
  }
  return row;
}

}  // namespace

Result<std::vector<ReportRow>> ReportUsage(const std::string& database, const ReportQuery& query) {
  INFERD_ASSIGN(const std::string sql, Select(query.by));
  INFERD_ASSIGN(Database opened, Database::Open(database, Database::Mode::kRead));
  auto statement = opened.Prepare(sql);
  if (!statement.ok()) {
    return statement.error().WithContext(database + " is not a usage database");
  }
  statement->BindInt(1, query.since_unix_ms);
  std::vector<ReportRow> rows;
  for (;;) {
    INFERD_ASSIGN(const bool more, statement->Step());
    if (!more) {
      return rows;
    }
    rows.push_back(ReadRow(*statement, query.by.size()));
  }
}

Result<std::int64_t> ParseSince(std::string_view text, std::int64_t now_unix_ms) {
  constexpr std::int64_t kHourMs = 3'600'000;
  constexpr std::int64_t kLongest = 1'000'000;
  const auto number = [](std::string_view digits) {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
  };
  if (text.size() == 10 && text[4] == '-' && text[7] == '-') {
    const std::chrono::year_month_day day(
        std::chrono::year(static_cast<int>(number(text.substr(0, 4)))),
        std::chrono::month(static_cast<unsigned>(number(text.substr(5, 2)))),
        std::chrono::day(static_cast<unsigned>(number(text.substr(8, 2)))));
    if (day.ok() && number(text.substr(0, 4)) >= 0) {
      return std::chrono::duration_cast<std::chrono::milliseconds>(
                 std::chrono::sys_days(day).time_since_epoch())
          .count();
    }
  } else if (!text.empty() && (text.back() == 'h' || text.back() == 'd')) {
    const std::int64_t count = number(text.substr(0, text.size() - 1));
    if (count >= 0 && count <= kLongest) {
      return now_unix_ms - count * (text.back() == 'd' ? 24 : 1) * kHourMs;
    }
  }
  return InvalidArgument("--since is '{}'; give a day as 2026-01-31, or a time ago as 36h or 7d",
                         text);
}

std::string ReportTable(const ReportQuery& query, const std::vector<ReportRow>& rows) {
  std::vector<std::vector<std::string>> cells{query.by};
  for (const char* const title : {"requests",
                                  "not done",
                                  "prompt",
                                  "cached",
                                  "completion",
                                  "reasoning",
                                  "queue ms",
                                  "ttft ms",
                                  "total ms"}) {
    cells.front().emplace_back(title);
  }
  for (const ReportRow& row : rows) {
    cells.push_back(row.group);
    for (const std::int64_t count : {row.requests,
                                     row.not_done,
                                     row.prompt_tokens,
                                     row.cached_tokens,
                                     row.completion_tokens,
                                     row.reasoning_tokens}) {
      cells.back().push_back(std::to_string(count));
    }
    for (const double ms : {row.mean_queue_ms, row.mean_ttft_ms, row.mean_total_ms}) {
      cells.back().push_back(fmt::format("{:.0f}", ms));
    }
  }
  std::string out;
  for (const auto& line : cells) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::size_t width = 0;
      for (const auto& other : cells) {
        width = std::max(width, other[i].size());
      }
      out += i < query.by.size() ? fmt::format("{:<{}}  ", line[i], width)
                                 : fmt::format("{:>{}}  ", line[i], width);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

std::string ReportJson(const ReportQuery& query, const std::vector<ReportRow>& rows) {
  std::string out;
  for (const ReportRow& row : rows) {
    nlohmann::ordered_json line;
    for (std::size_t i = 0; i < query.by.size(); ++i) {
      line[query.by[i]] = row.group[i];
    }
    line["requests"] = row.requests;
    line["not_done"] = row.not_done;
    line["prompt_tokens"] = row.prompt_tokens;
    line["cached_tokens"] = row.cached_tokens;
    line["completion_tokens"] = row.completion_tokens;
    line["reasoning_tokens"] = row.reasoning_tokens;
    line["mean_queue_ms"] = row.mean_queue_ms;
    line["mean_ttft_ms"] = row.mean_ttft_ms;
    line["mean_total_ms"] = row.mean_total_ms;
    out += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return out;
}

}  // namespace inferd::tenant

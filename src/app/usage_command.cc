// SPDX-License-Identifier: Apache-2.0
// `inferd usage`: sums of the usage ledger.
#include "app/commands.h"
#include "base/error.h"
#include "tenant/usage_report.h"

#include <chrono>
#include <cstdio>

namespace inferd::app {

Result<> PrintUsage(const CommandLine& line) {
  const std::string& database = line.config.tenant.usage_db;
  if (database.empty()) {
    return InvalidArgument(
        "which ledger? give --usage-db FILE, as the server was given it, or set INFERD_USAGE_DB");
  }
  const std::int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
  tenant::ReportQuery query{.by = line.by};
  INFERD_ASSIGN(query.since_unix_ms, tenant::ParseSince(line.since, now_ms));
  INFERD_ASSIGN(const auto rows, tenant::ReportUsage(database, query));
  const std::string text =
      line.json ? tenant::ReportJson(query, rows) : tenant::ReportTable(query, rows);
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace inferd::app

// SPDX-License-Identifier: Apache-2.0
// The ledger and its report, on real files in the test's own folder.
#include "tenant/usage_ledger.h"

#include "base/file.h"
#include "tenant/sqlite.h"
#include "tenant/usage_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace inferd::tenant {
namespace {

constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::int64_t kNoon = 1'767'225'600'000 + kDayMs / 2;  // 2026-01-01, noon UTC

class UsageLedgerTest : public testing::Test {
 protected:
  UsageLedgerTest() {
    std::string name = testing::TempDir() + "inferd-usage-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~UsageLedgerTest() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<UsageLedger> Open(std::size_t queue = 8192) {
    auto ledger =
        UsageLedger::Open({.database = database(), .log_file = log_file(), .queue = queue});
    EXPECT_TRUE(ledger.ok()) << ledger.error().message();
    return ledger.ok() ? *ledger : nullptr;
  }
  std::string database() const { return folder_ + "/usage.db"; }
  std::string log_file() const { return folder_ + "/usage.jsonl"; }

  static UsageRecord Record(const std::string& key, std::int64_t unix_ms = kNoon) {
    return {.unix_ms = unix_ms,
            .key = key,
            .model = "m",
            .version = "v",
            .operation = "/v1/completions",
            .request_id = "r",
            .usage = {.prompt_tokens = 10,
                      .cached_tokens = 4,
                      .completion_tokens = 5,
                      .reasoning_tokens = 2,
                      .queue_ms = 1,
                      .ttft_ms = 20,
                      .total_ms = 100}};
  }
  std::vector<ReportRow> Report(const ReportQuery& query) {
    auto rows = ReportUsage(database(), query);
    EXPECT_TRUE(rows.ok()) << rows.error().message();
    return rows.ok() ? *rows : std::vector<ReportRow>();
  }

  std::string folder_;
};

TEST_F(UsageLedgerTest, OldRowsAreRemovedWhereTheyAreNotKeptForEver) {
  const std::int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
  const auto rows_left = [&](std::int64_t keep_days) {
    auto opened = UsageLedger::Open({.database = database(), .keep_days = keep_days});
    EXPECT_TRUE(opened.ok());
    opened->reset();  // the first thing its thread does is to look
    std::int64_t requests = 0;
    for (const ReportRow& row : Report({})) {
      requests += row.requests;
    }
    return requests;
  };
  auto ledger = Open();
  for (const std::int64_t days : {0, 29, 31, 500}) {
    ledger->Put(Record("alice", now_ms - days * kDayMs));
  }
  ledger.reset();
  EXPECT_EQ(rows_left(0), 4);
  EXPECT_EQ(rows_left(400), 3);
  EXPECT_EQ(rows_left(30), 2);
}

TEST_F(UsageLedgerTest, SumsByKeyAndDay) {
  auto ledger = Open();
  ledger->Put(Record("alice"));
  ledger->Put(Record("alice", kNoon + 1000));
  ledger->Put(Record("alice", kNoon + kDayMs));
  UsageRecord failed = Record("bob");
  failed.usage = {.outcome = UsageOutcome::kFailed};
  ledger->Put(failed);
  ledger.reset();  // writes what waits
  const auto rows = Report({});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].group, (std::vector<std::string>{"alice", "2026-01-01"}));
  EXPECT_EQ(rows[0].requests, 2);
  EXPECT_EQ(rows[0].not_done, 0);
  EXPECT_EQ(rows[0].prompt_tokens, 20);
  EXPECT_EQ(rows[0].cached_tokens, 8);
  EXPECT_EQ(rows[0].completion_tokens, 10);
  EXPECT_EQ(rows[0].reasoning_tokens, 4);
  EXPECT_EQ(rows[0].mean_ttft_ms, 20);
  EXPECT_EQ(rows[0].mean_total_ms, 100);
  EXPECT_EQ(rows[1].group, (std::vector<std::string>{"alice", "2026-01-02"}));
  EXPECT_EQ(rows[2].group, (std::vector<std::string>{"bob", "2026-01-01"}));
  EXPECT_EQ(rows[2].not_done, 1);
  EXPECT_EQ(rows[2].mean_ttft_ms, 0);
  const auto later = Report({.since_unix_ms = kNoon + 2000, .by = {"key"}});
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].requests, 1);
  EXPECT_EQ(Report({.by = {"outcome", "model", "version", "operation"}}).size(), 2U);
}

TEST_F(UsageLedgerTest, AnswersWhileItIsWrittenAndCarriesOnAfterARestart) {
  Open()->Put(Record("alice"));
  auto ledger = Open();
  EXPECT_EQ(Report({.by = {"key"}}).front().requests, 1);
  ledger->Put(Record("alice"));
  ledger.reset();
  EXPECT_EQ(Report({.by = {"key"}}).front().requests, 2);
}

TEST_F(UsageLedgerTest, WritesOneJsonLinePerRequestWithoutText) {
  auto ledger = Open();
  UsageRecord odd = Record("a \"quoted\"\nkey");
  odd.usage.queue_ms = odd.usage.ttft_ms = -1;
  odd.usage.outcome = UsageOutcome::kClientLeft;
  ledger->Put(odd);
  ledger->Put(Record("bob"));
  ledger.reset();
  const auto text = base::ReadFile(log_file(), 1 << 20);
  ASSERT_TRUE(text.ok());
  const std::size_t end = text->find('\n');
  const auto line = nlohmann::json::parse(text->substr(0, end));
  EXPECT_EQ(line["key"], "a \"quoted\"\nkey");
  EXPECT_EQ(line["outcome"], "client_left");
  EXPECT_TRUE(line["ttft_ms"].is_null());
  EXPECT_EQ(line["completion_tokens"], 5);
  EXPECT_EQ(line.size(), 14U);
  EXPECT_EQ(nlohmann::json::parse(text->substr(end + 1))["key"], "bob");
}

TEST_F(UsageLedgerTest, FollowsARotatedLog) {
  auto ledger = Open();
  ledger->Put(Record("before"));
  ledger.reset();
  ledger = Open();
  ASSERT_EQ(std::rename(log_file().c_str(), (log_file() + ".1").c_str()), 0);
  ledger->Put(Record("after"));
  ledger.reset();
  const auto rotated = base::ReadFile(log_file() + ".1", 1 << 20);
  const auto current = base::ReadFile(log_file(), 1 << 20);
  ASSERT_TRUE(rotated.ok() && current.ok());
  EXPECT_NE(rotated->find("before"), std::string::npos);
  EXPECT_EQ(rotated->find("after"), std::string::npos);
  EXPECT_NE(current->find("after"), std::string::npos);
}

TEST_F(UsageLedgerTest, NeverWaitsAndCountsWhatItLoses) {
  auto ledger = Open(/*queue=*/4);
  auto blocker = Database::Open(database(), Database::Mode::kWrite);
  ASSERT_TRUE(blocker.ok());
  ASSERT_TRUE(blocker->Run("BEGIN EXCLUSIVE").ok());  // the writer cannot write meanwhile
  constexpr std::uint64_t kPut = 10'000;
  for (std::uint64_t i = 0; i < kPut; ++i) {
    ledger->Put(Record("alice"));
  }
  EXPECT_GT(ledger->dropped(), 0U);  // the queue holds 4, and a batch of the writer 1024
  ASSERT_TRUE(blocker->Run("COMMIT").ok());
  const std::uint64_t dropped = ledger->dropped();
  ledger.reset();
  EXPECT_EQ(Report({.by = {}}).front().requests, static_cast<std::int64_t>(kPut - dropped));
}

TEST_F(UsageLedgerTest, RefusesFilesThatAreNotIts) {
  ASSERT_TRUE(base::WriteFileAtomic(database(), std::string(5000, 'x')).ok());
  EXPECT_FALSE(UsageLedger::Open({.database = database()}).ok());
  EXPECT_FALSE(ReportUsage(database(), {}).ok());
  EXPECT_FALSE(UsageLedger::Open({.database = folder_ + "/none/usage.db"}).ok());
  EXPECT_FALSE(UsageLedger::Open({.log_file = folder_}).ok());
  const auto absent = ReportUsage(folder_ + "/absent.db", {});
  ASSERT_FALSE(absent.ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/absent.db")) << "a report made a file";
}

TEST_F(UsageLedgerTest, RefusesALayoutOfTheFuture) {
  {
    auto made = Database::Open(database(), Database::Mode::kWrite);
    ASSERT_TRUE(made.ok() && made->Run("PRAGMA user_version=2").ok());
  }
  const auto opened = UsageLedger::Open({.database = database()});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message().find("newer"), std::string::npos);
}

TEST(UsageReport, RefusesAnUnknownColumn) {
  const auto rows = ReportUsage("unused.db", {.by = {"key", "1; DROP TABLE usage"}});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code(), Code::kInvalidArgument);
}

TEST(UsageReport, ReadsSince) {
  EXPECT_EQ(*ParseSince("2026-01-01", kNoon), kNoon - kDayMs / 2);
  EXPECT_EQ(*ParseSince("7d", kNoon), kNoon - 7 * kDayMs);
  EXPECT_EQ(*ParseSince("36h", kNoon), kNoon - 36 * kDayMs / 24);
  for (const char* const wrong :
       {"", "d", "-1d", "2026-02-30", "2026-13-01", "yesterday", "7", "99999999999d", "20260101"}) {
    EXPECT_FALSE(ParseSince(wrong, kNoon).ok()) << wrong;
  }
}

TEST(UsageReport, PrintsATableAndJson) {
  const ReportQuery query{.by = {"key"}};
  const std::vector<ReportRow> rows{{.group = {"alice"}, .requests = 12, .mean_total_ms = 99.6},
                                    {.group = {"b"}, .requests = 3}};
  EXPECT_EQ(
      ReportTable(query, rows),
      "key    requests  not done  prompt  cached  completion  reasoning  queue ms  ttft ms  total "
      "ms\n"
      "alice        12         0       0       0           0          0         0        0       "
      "100\n"
      "b             3         0       0       0           0          0         0        0         "
      "0\n");
  const std::string json = ReportJson(query, rows);
  const auto first = nlohmann::json::parse(json.substr(0, json.find('\n')));
  EXPECT_EQ(first["key"], "alice");
  EXPECT_EQ(first["requests"], 12);
}

}  // namespace
}  // namespace inferd::tenant

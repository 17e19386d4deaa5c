// SPDX-License-Identifier: Apache-2.0
// The Batch API over loopback, with an engine that recites.
#include "base/file.h"
#include "storage_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

std::string Line(const std::string& id, const std::string& body) {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":)" + body +
         "}\n";
}

std::string Prompt(int max_tokens) {
  return R"({"prompt":"x","max_tokens":)" + std::to_string(max_tokens) + "}";
}

/// Cut anywhere it would be no UTF-8.
std::string LongName() {
  std::string name;
  for (int i = 0; i < 100; ++i) {
    name += "\u20ac";
  }
  return name;
}

std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    EXPECT_NE(end, std::string::npos) << "the last line has no end";
    lines.push_back(Json::parse(text.substr(at, end - at)));
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

std::multiset<std::string> IdsOf(const std::vector<Json>& lines) {
  std::multiset<std::string> ids;
  for (const Json& line : lines) {
    ids.insert(line["custom_id"].get<std::string>());
  }
  return ids;
}

class BatchesTest : public StorageTest {
 protected:
  Reply Create(const std::string& file, const std::string& more = "") {
    return Send("POST",
                "/v1/batches",
                R"({"endpoint":"/v1/completions","completion_window":"24h","input_file_id":")" +
                    file + "\"" + more + "}");
  }
  /// The batch's id.
  std::string Begin(const std::string& content) {
    const Reply reply = Create(Upload(content));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? Json::parse(reply.body)["id"].get<std::string>() : "";
  }
  Json Look(const std::string& id) { return Json::parse(Send("GET", "/v1/batches/" + id).body); }
  Json WaitFor(const std::string& id, const std::string& status) {
    Json seen;
    EXPECT_TRUE(Eventually([&] { return (seen = Look(id))["status"] == status; })) << seen;
    return seen;
  }
  std::vector<Json> LinesOf(const Json& file_id) {
    return file_id.is_string()
               ? Lines(Send("GET", "/v1/files/" + file_id.get<std::string>() + "/content").body)
               : std::vector<Json>();
  }
  std::string Working(const std::string& id, const std::string& end) const {
    return storage_.folder + "/batches/" + id + end;
  }
  void Restart() {
    server_->Stop();
    server_.reset();
    StartWithFiles();
  }
};

TEST_F(BatchesTest, WhatCanNeverFitFailsAtOnce) {
  service_.SetMaxChoices(4);
  StartWithFiles();
  const Json batch =
      WaitFor(Begin(Line("fits", R"({"prompt":"x","n":4})") + Line("n", R"({"prompt":"x","n":5})") +
                    Line("prompts", R"({"prompt":["a","b","c","d","e"]})")),
              "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 3}, {"completed", 1}, {"failed", 2}}));
  for (const Json& line : LinesOf(batch["error_file_id"])) {
    EXPECT_EQ(line["response"]["status_code"], 400);
    const Json error = line["response"]["body"]["error"];
    EXPECT_EQ(error["param"], line["custom_id"] == "n" ? "n" : "prompt");
    EXPECT_NE(error["message"].get<std::string>().find("--max-waiting"), std::string::npos);
  }
}

TEST_F(BatchesTest, ALineMayUseANameThatIsGone) {
  auto model = TestModel();
  HttpOptions options;
  options.port = 0;
  options.access_log = false;
  auto started = Server::Start(options, model, &service_, gate_, storage_);
  ASSERT_TRUE(started.ok()) << started.error().message();
  server_ = *std::move(started);
  port_ = server_->port();
  model->names->Set({"new"});
  const std::string old = R"({"prompt":"x","max_tokens":3,"model":"test-model"})";
  const Json batch = WaitFor(
      Begin(Line("old", old) + Line("never", R"({"prompt":"x","max_tokens":3,"model":"other"})")),
      "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 2}, {"completed", 1}, {"failed", 1}}));
  EXPECT_EQ(IdsOf(LinesOf(batch["output_file_id"])), std::multiset<std::string>{"old"});
  EXPECT_EQ(Send("POST", "/v1/completions", old).status, 404) << "for who asks now it is gone";
}

TEST_F(BatchesTest, LinesAreHeldToStrictRequests) {
  HttpOptions options;
  options.strict_requests = true;
  StartWithFiles(options);
  const Json batch = WaitFor(
      Begin(Line("good", Prompt(3)) + Line("bad", R"({"prompt":"x","max_token":3})")), "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 2}, {"completed", 1}, {"failed", 1}}));
  const auto bad = LinesOf(batch["error_file_id"]);
  ASSERT_EQ(bad.size(), 1U);
  EXPECT_EQ(bad[0]["response"]["body"]["error"]["param"], "max_token");
}

TEST_F(BatchesTest, AnswersGoToOneFileAndErrorsToAnother) {
  StartWithFiles();
  const std::string file = Upload(Line("a", Prompt(20)) + Line("b", R"({"prompt":"x","n":1000})") +
                                  Line("c", R"({"prompt":"x","stream":true})") +
                                  Line("d", R"({"prompt":"x","model":"other"})") +
                                  Line("e", R"({"prompt":"x","priority":-5})"));
  const Reply made = Create(file, R"(,"metadata":{"k":"v"})");
  ASSERT_EQ(made.status, 200) << made.body;
  const Json first = Json::parse(made.body);
  EXPECT_TRUE(first["id"].get<std::string>().starts_with("batch_"));
  EXPECT_EQ(first["object"], "batch");
  EXPECT_EQ(first["status"], "validating");
  EXPECT_EQ(first["metadata"]["k"], "v");
  EXPECT_EQ(first["expires_at"].get<long>() - first["created_at"].get<long>(), 24 * 3600);
  EXPECT_EQ(first["output_file_id"], nullptr);
  const Json batch = WaitFor(first["id"], "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 5}, {"completed", 2}, {"failed", 3}}));
  for (const char* const time : {"in_progress_at", "finalizing_at", "completed_at"}) {
    EXPECT_GE(batch[time], batch["created_at"]) << time;
  }
  EXPECT_EQ(batch["errors"], nullptr);
  const auto good = LinesOf(batch["output_file_id"]);
  EXPECT_EQ(IdsOf(good), (std::multiset<std::string>{"a", "e"}));
  for (const Json& line : good) {
    EXPECT_TRUE(line["id"].get<std::string>().starts_with("batch_req_"));
    EXPECT_EQ(line["error"], nullptr);
    EXPECT_EQ(line["response"]["status_code"], 200);
    EXPECT_TRUE(line["response"]["request_id"].is_string());
    EXPECT_EQ(line["response"]["body"]["choices"][0]["text"], "Hello");
  }
  const auto bad = LinesOf(batch["error_file_id"]);
  EXPECT_EQ(IdsOf(bad), (std::multiset<std::string>{"b", "c", "d"}));
  for (const Json& line : bad) {
    const bool missing = line["custom_id"] == "d";
    EXPECT_EQ(line["response"]["status_code"], missing ? 404 : 400);
    EXPECT_EQ(line["response"]["body"]["error"]["param"],
              missing                    ? "model"
              : line["custom_id"] == "b" ? "n"
                                         : "stream");
  }
  EXPECT_EQ(Json::parse(Send("GET", "/v1/files?purpose=batch_output").body)["data"].size(), 2U);
  EXPECT_EQ(Send("DELETE", "/v1/files/" + file).status, 200);
  EXPECT_TRUE(std::filesystem::is_empty(storage_.folder + "/batches") ||
              !std::filesystem::exists(Working(batch["id"], ".output")));
  const std::string metrics = Get(port_, "/metrics").body;
  EXPECT_NE(
      metrics.find("inferd_batch_lines_total{model_name=\"test-model\",outcome=\"failed\"} 3"),
      std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("inferd_batches{model_name=\"test-model\",state=\"completed\"} 1"),
            std::string::npos);
  EXPECT_NE(metrics.find("inferd_batch_lines_running{model_name=\"test-model\"} 0"),
            std::string::npos);
}

TEST_F(BatchesTest, LinesGoBehindEverythingElse) {
  StartWithFiles();
  WaitFor(Begin(Line("a", R"({"prompt":"x","priority":-5})")), "completed");
  EXPECT_EQ(service_.last()->priority, std::numeric_limits<std::int32_t>::max());
}

TEST_F(BatchesTest, ABadFileFailsWithItsLines) {
  StartWithFiles();
  const Json batch =
      WaitFor(Begin(Line("a", Prompt(1)) + "nonsense\n" + Line("a", Prompt(1))), "failed");
  EXPECT_EQ(batch["errors"]["object"], "list");
  ASSERT_EQ(batch["errors"]["data"].size(), 2U);
  EXPECT_EQ(batch["errors"]["data"][0]["line"], 2);
  EXPECT_EQ(batch["errors"]["data"][0]["code"], "invalid_json_line");
  EXPECT_EQ(batch["errors"]["data"][1]["line"], 3);
  EXPECT_EQ(batch["errors"]["data"][1]["code"], "duplicate_custom_id");
  EXPECT_EQ(batch["errors"]["data"][1]["param"], "custom_id");
  EXPECT_GT(batch["failed_at"], 0);
  EXPECT_EQ(service_.tokens(), 0U);
}

TEST_F(BatchesTest, CreationIsChecked) {
  StartWithFiles();
  const std::string file = Upload(Line("a", Prompt(1)));
  const auto body = [&](const std::string& key, const std::string& value) {
    Json json{
        {"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
    json.erase(key);
    if (!value.empty()) {
      json[key] = Json::parse(value);
    }
    return json.dump();
  };
  struct {
    std::string key, value;
    int status;
  } const cases[] = {{"input_file_id", "", 400},
                     {"input_file_id", "\"file-none\"", 404},
                     {"input_file_id", "\"" + LongName() + "\"", 404},
                     {"endpoint", "\"/v1/models\"", 400},
                     {"completion_window", "\"1h\"", 400},
                     {"completion_window", "", 400},
                     {"metadata", "[]", 400},
                     {"metadata", R"({"a":1})", 400},
                     {"output_expires_after", "7", 400}};
  for (const auto& one : cases) {
    const Reply reply = Send("POST", "/v1/batches", body(one.key, one.value));
    EXPECT_EQ(reply.status, one.status) << one.key << " " << one.value;
    EXPECT_TRUE(Json::parse(reply.body)["error"]["param"].get<std::string>().starts_with(one.key));
  }
  EXPECT_EQ(Send("POST",
                 "/v1/batches",
                 body("output_expires_after", R"({"anchor":"created_at","seconds":10})"))
                .status,
            400);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/batches").body)["data"].size(), 0U);
  const std::string id = Json::parse(Create(file).body)["id"];
  const Json batch = WaitFor(id, "completed");
  EXPECT_EQ(Create(batch["output_file_id"]).status, 400) << "an output is no input";
  const Json list = Json::parse(Send("GET", "/v1/batches?limit=1").body);
  EXPECT_EQ(list["data"][0]["id"], id);
  EXPECT_EQ(list["has_more"], false);
}

TEST_F(BatchesTest, ACancelledBatchKeepsWhatItHas) {
  service_.HoldAt(2);
  StartWithFiles();
  const std::string file =
      Upload(Line("quick", Prompt(1)) + Line("slow", Prompt(9)) + Line("slow2", Prompt(9)));
  const std::string id = Json::parse(Create(file).body)["id"];
  ASSERT_TRUE(Eventually([&] { return Look(id)["request_counts"]["completed"] == 1; }));
  ASSERT_TRUE(service_.WaitRunning(2));
  const Reply held = Send("DELETE", "/v1/files/" + file);
  EXPECT_EQ(held.status, 409);
  EXPECT_EQ(Json::parse(held.body)["error"]["code"], "file_in_use");
  const Reply cancelled = Send("POST", "/v1/batches/" + id + "/cancel");
  ASSERT_EQ(cancelled.status, 200) << cancelled.body;
  EXPECT_EQ(Json::parse(cancelled.body)["status"], "cancelling");
  const Json batch = WaitFor(id, "cancelled");
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(IdsOf(LinesOf(batch["output_file_id"])), (std::multiset<std::string>{"quick"}));
  const auto unrun = LinesOf(batch["error_file_id"]);
  EXPECT_EQ(IdsOf(unrun), (std::multiset<std::string>{"slow", "slow2"}));
  EXPECT_EQ(unrun[0]["error"]["code"], "batch_cancelled");
  EXPECT_EQ(unrun[0]["response"], nullptr);
  EXPECT_GE(batch["cancelled_at"], batch["cancelling_at"]);
  EXPECT_EQ(Send("POST", "/v1/batches/" + id + "/cancel").status, 400);
  EXPECT_EQ(Send("POST", "/v1/batches/batch_none/cancel").status, 404);
  EXPECT_EQ(Send("DELETE", "/v1/files/" + file).status, 200);
}

TEST_F(BatchesTest, ARestartGoesOnAndAnswersNothingTwice) {
  service_.HoldAt(2);
  storage_.batches.max_running = 3;
  StartWithFiles();
  std::string content;
  for (int i = 0; i < 8; ++i) {
    content += Line(std::to_string(i), Prompt(i < 4 ? 1 : 9));
  }
  const std::string id = Begin(content);
  ASSERT_TRUE(Eventually([&] { return Look(id)["request_counts"]["completed"] == 4; }));
  server_->Stop();
  server_.reset();
  const std::string before = *base::ReadFile(Working(id, ".output"), 1 << 20);
  EXPECT_EQ(Lines(before).size(), 4U);
  // What a kill in the middle of a write leaves.
  ASSERT_TRUE(base::WriteFileAtomic(Working(id, ".output"), before + "{\"custom_id\":\"5\"").ok());
  service_.HoldAt(-1);
  StartWithFiles();
  const Json batch = WaitFor(id, "completed");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 8}, {"completed", 8}, {"failed", 0}}));
  const std::string after =
      Send("GET", "/v1/files/" + batch["output_file_id"].get<std::string>() + "/content").body;
  EXPECT_TRUE(after.starts_with(before));
  EXPECT_EQ(IdsOf(Lines(after)),
            (std::multiset<std::string>{"0", "1", "2", "3", "4", "5", "6", "7"}));
  Restart();
  EXPECT_EQ(Look(id), batch);
}

TEST_F(BatchesTest, ABatchThatWasCancelledAsTheServerDiedIsCancelledByTheNextOne) {
  service_.HoldAt(2);
  StartWithFiles();
  const std::string id = Begin(Line("a", Prompt(9)));
  ASSERT_TRUE(service_.WaitRunning(1));
  server_->BeginDrain();
  server_->Stop();
  server_.reset();
  const std::string path = Working(id, ".json");
  Json record = Json::parse(*base::ReadFile(path, 1 << 20));
  record["state"] = "cancelling";
  ASSERT_TRUE(base::WriteFileAtomic(path, record.dump()).ok());
  StartWithFiles();
  WaitFor(id, "cancelled");
}

TEST_F(BatchesTest, ABatchEndsWithItsWindow) {
  std::atomic<std::int64_t> now{1'000'000};
  storage_.batches.now_s = [&now] { return now.load(); };
  service_.HoldAt(2);
  StartWithFiles();
  const std::string id = Begin(Line("quick", Prompt(1)) + Line("slow", Prompt(9)));
  ASSERT_TRUE(Eventually([&] { return Look(id)["request_counts"]["completed"] == 1; }));
  ASSERT_TRUE(service_.WaitRunning(1));
  now += 24 * 3600;
  const Json batch = WaitFor(id, "expired");
  EXPECT_EQ(batch["expired_at"], now.load());
  EXPECT_EQ(IdsOf(LinesOf(batch["output_file_id"])), (std::multiset<std::string>{"quick"}));
  EXPECT_EQ(LinesOf(batch["error_file_id"]).at(0)["error"]["code"], "batch_expired");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 2}, {"completed", 1}, {"failed", 1}}));
  server_->Stop();  // before the clock goes
}

TEST_F(BatchesTest, AFullQueueAndALostModelPutLinesOff) {
  StartWithFiles();
  service_.FailNextSubmit(ResourceExhausted("full"));
  Json batch = WaitFor(Begin(Line("a", Prompt(1))), "completed");
  EXPECT_EQ(batch["request_counts"]["completed"], 1);
  service_.FailNextSubmit(Unavailable("lost"));
  batch = WaitFor(Begin(Line("a", Prompt(1))), "completed");
  EXPECT_EQ(batch["request_counts"]["completed"], 1);
  EXPECT_NE(Get(port_, "/metrics")
                .body.find("inferd_batch_lines_retried_total{model_name=\"test-model\"} 2"),
            std::string::npos);
}

TEST_F(BatchesTest, WaitsForTheModelAndDoesNotHoldUpADrain) {
  service_.SetPhase(leader::Phase::kLoading);
  service_.HoldAt(2);
  StartWithFiles();
  const std::string id = Begin(Line("a", Prompt(9)) + Line("b", Prompt(9)));
  WaitFor(id, "in_progress");
  EXPECT_TRUE(service_.WaitRunning(0));
  service_.SetPhase(leader::Phase::kReady);
  ASSERT_TRUE(service_.WaitRunning(2));
  server_->BeginDrain();
  EXPECT_TRUE(Eventually([&] { return server_->open_requests() == 0; }));
  server_->Stop();
  EXPECT_TRUE(service_.WaitRunning(0));
}

TEST_F(BatchesTest, NoMoreLinesRunThanAllowed) {
  service_.HoldAt(2);
  storage_.batches.max_running = 2;
  StartWithFiles();
  std::string content;
  for (int i = 0; i < 6; ++i) {
    content += Line(std::to_string(i), Prompt(9));
  }
  const std::string id = Begin(content);
  ASSERT_TRUE(service_.WaitRunning(2));
  // Others are served meanwhile, and the batch still has its two.
  EXPECT_EQ(Send("POST", "/v1/completions", Prompt(1)).status, 200);
  EXPECT_NE(
      Get(port_, "/metrics").body.find("inferd_batch_lines_running{model_name=\"test-model\"} 2"),
      std::string::npos);
  EXPECT_TRUE(service_.WaitRunning(2));
  Send("POST", "/v1/batches/" + id + "/cancel");
  WaitFor(id, "cancelled");
}

TEST_F(BatchesTest, KeysAreApart) {
  UseKeysNamed({"alice", "bob"});
  service_.HoldAt(2);
  storage_.batches.max_running = 4;
  StartWithFiles();
  As("alice");
  const std::string file = Upload(Line("a", Prompt(9)));
  const std::string id = Json::parse(Create(file).body)["id"];
  ASSERT_TRUE(service_.WaitRunning(1));
  As("bob");
  EXPECT_EQ(Send("GET", "/v1/batches/" + id).status, 404);
  EXPECT_EQ(Send("POST", "/v1/batches/" + id + "/cancel").status, 404);
  EXPECT_EQ(Create(file).status, 404);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/batches").body)["data"].size(), 0U);
  // Alice's batch does not keep Bob's waiting.
  const Json batch = WaitFor(Begin(Line("quick", Prompt(1))), "completed");
  As("alice");
  EXPECT_EQ(
      Send("GET", "/v1/files/" + batch["output_file_id"].get<std::string>() + "/content").status,
      404);
  EXPECT_EQ(Look(id)["status"], "in_progress");
}

TEST_F(BatchesTest, AnUsedUpAllowancePutsLinesOff) {
  tenant::ApiKey key;
  key.name = "alice";
  key.digest = tenant::DigestOf("text-of-alice");
  key.metrics = true;
  key.limits.requests_per_minute = 3;  // the upload, the batch, a line
  UseKeys({key});
  StartWithFiles();
  As("alice");
  const std::string id = Begin(Line("a", Prompt(1)) + Line("b", Prompt(1)));
  const auto retried = [&] {
    return Send("GET", "/metrics")
               .body.find("inferd_batch_lines_retried_total{model_name=\"test-model\"} 1") !=
           std::string::npos;
  };
  EXPECT_TRUE(Eventually(retried));
  EXPECT_TRUE(Eventually([&] { return Look(id)["request_counts"]["completed"] == 1; }));
  const Json batch = Look(id);
  EXPECT_EQ(batch["status"], "in_progress");
  EXPECT_EQ(batch["request_counts"], Json({{"total", 2}, {"completed", 1}, {"failed", 0}}));
}

TEST_F(BatchesTest, LinesRunWithinTheLimitsOfTheirKey) {
  tenant::ApiKey key;
  key.name = "alice";
  key.digest = tenant::DigestOf("text-of-alice");
  key.models = {"another"};
  UseKeys({key});
  StartWithFiles();
  As("alice");
  const Json batch =
      WaitFor(Begin(Line("a", R"({"prompt":"x","model":"test-model"})")), "completed");
  EXPECT_EQ(LinesOf(batch["error_file_id"]).at(0)["response"]["status_code"], 403);
}

}  // namespace
}  // namespace inferd::api

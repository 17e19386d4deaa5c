// SPDX-License-Identifier: Apache-2.0
// Keys, limits, CORS and the headers that go with every answer, over loopback.
#include "api/server/endpoints.h"
#include "base/clock.h"
#include "base/error.h"
#include "server_fixture.h"
#include "tenant/gate.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

class FakeLedger final : public tenant::UsageSink {
 public:
  void Put(tenant::UsageRecord record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(std::move(record));
  }
  std::uint64_t dropped() const override { return dropped_; }
  void Drop(std::uint64_t count) { dropped_ = count; }
  std::vector<tenant::UsageRecord> records() const {
    const std::lock_guard lock(mutex_);
    return records_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<tenant::UsageRecord> records_;
  std::atomic<std::uint64_t> dropped_{0};
};

/// Moved by the test while server threads read it.
class TestClock final : public base::Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_.load(); }
  void AdvanceMs(std::int64_t ms) { now_ns_.fetch_add(ms * 1'000'000); }

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

tenant::ApiKey Key(const std::string& name) {
  tenant::ApiKey key;
  key.name = name;
  key.digest = tenant::DigestOf("text-of-" + name);
  return key;
}

const std::string kAlice = "Authorization: Bearer text-of-alice\r\n";

class KeysTest : public ServerTest {
 protected:
  void StartWithKeys(std::vector<tenant::ApiKey> keys, HttpOptions options = {}) {
    options.port = 0;
    options.access_log = false;
    auto table = tenant::KeyTable::Make(std::move(keys));
    ASSERT_TRUE(table.ok());
    auto gate = std::make_shared<tenant::Gate>(
        tenant::GateOptions{.model_name = "m", .model_version = "v7", .objectives = {{"bulk", 10}}},
        *std::move(table),
        ledger_,
        &clock_);
    auto model = std::make_shared<ServedModel>(*TestModel());
    model->version = "v7";
    auto started = Server::Start(options, std::move(model), &service_, std::move(gate));
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = *std::move(started);
    port_ = server_->port();
  }
  Reply Send(const std::string& method,
             const std::string& path,
             const std::string& headers,
             const std::string& body = "") {
    HttpClient client(port_);
    std::string bytes = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
    if (method == "POST") {
      bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    client.Send(bytes + "\r\n" + body);
    return client.Read(method == "HEAD");
  }
  Reply Chat(const std::string& headers, const std::string& fields = R"("max_tokens":5)") {
    return Send("POST", "/v1/chat/completions", headers, ChatWith(fields));
  }

  TestClock clock_;
  std::shared_ptr<FakeLedger> ledger_ = std::make_shared<FakeLedger>();
};

TEST_F(KeysTest, EveryRouteButTheOpenOnesNeedsAKey) {
  StartWithKeys({Key("alice")});
  for (const char* const path : {"/health", "/livez", "/readyz", "/ping", "/version"}) {
    EXPECT_EQ(Send("GET", path, "").status, 200) << path;
    EXPECT_EQ(Send("HEAD", path, "").status, 200) << path;
  }
  const std::vector<std::pair<std::string, std::string>> closed{{"GET", "/v1/models"},
                                                                {"HEAD", "/v1/models"},
                                                                {"GET", "/v1/models/m"},
                                                                {"GET", "/metrics"},
                                                                {"POST", "/v1/chat/completions"},
                                                                {"POST", "/v1/completions"},
                                                                {"POST", "/tokenize"},
                                                                {"POST", "/detokenize"},
                                                                {"GET", "/v1/chat/completions"},
                                                                {"DELETE", "/health"},
                                                                {"GET", "/nowhere"},
                                                                {"GET", "//health"},
                                                                {"GET", "/health/"},
                                                                {"GET", "/%68ealth"},
                                                                {"GET", "/health/../metrics"},
                                                                {"GET", "http://localhost/metrics"},
                                                                {"GET", "/metrics?path=/health"}};
  for (const auto& [method, path] : closed) {
    for (const char* const headers : {"",
                                      "Authorization: Bearer wrong-key\r\n",
                                      "Authorization: Bearer\r\n",
                                      "Authorization: Basic text-of-alice\r\n",
                                      "Authorization: text-of-alice\r\n",
                                      "X-Api-Key: text-of-alic\r\n"}) {
      const Reply reply = Send(method, path, headers);
      EXPECT_EQ(reply.status, 401) << method << " " << path << " " << headers;
      EXPECT_TRUE(reply.Has("www-authenticate: bearer")) << method << " " << path;
      EXPECT_TRUE(reply.Has("x-request-id: ")) << method << " " << path;
      if (method != "HEAD") {
        EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "authentication_error");
        EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "invalid_api_key");
      }
    }
  }
  EXPECT_EQ(service_.tokens(), 0U);
}

TEST_F(KeysTest, TheTableOpensOnlyWhatIsMeantToBeOpen) {
  StartWithKeys({Key("alice")});
  std::set<std::string> open;
  for (const Endpoint& endpoint : Endpoints()) {
    std::string path(endpoint.path);
    if (const std::size_t at = path.find("{id}"); at != std::string::npos) {
      path.replace(at, 4, "x");
    }
    path += path.ends_with('/') ? "x" : "";
    if (endpoint.scope == tenant::Scope::kOpen) {
      open.insert(path);
      continue;
    }
    const Reply reply = Send(std::string(endpoint.method), path, "");
    EXPECT_EQ(reply.status, 401) << endpoint.method << " " << path;
    EXPECT_EQ(reply.body,
              endpoint.error_body(Unauthenticated("This server needs an API key; send it as "
                                                  "`Authorization: Bearer KEY`"),
                                  {"", "invalid_api_key"}))
        << path;
  }
  EXPECT_EQ(open,
            (std::set<std::string>{"/health",
                                   "/livez",
                                   "/readyz",
                                   "/startupz",
                                   "/ping",
                                   "/version",
                                   "/api/version",
                                   "/v2/health/live",
                                   "/v2/health/ready"}));
}

TEST_F(KeysTest, TakesAKeyFromAnyOfThreeFields) {
  StartWithKeys({Key("alice")});
  for (const char* const headers : {"Authorization: Bearer text-of-alice\r\n",
                                    "authorization: bearer   text-of-alice\r\n",
                                    "x-api-key: text-of-alice\r\n",
                                    "api-key: text-of-alice\r\n",
                                    "Authorization: Basic eA==\r\nX-Api-Key: text-of-alice\r\n"}) {
    EXPECT_EQ(Chat(headers).status, 200) << headers;
  }
  EXPECT_EQ(Chat(kAlice + kAlice).status, 400) << "two keys: which one was meant?";
  EXPECT_EQ(Chat("x-api-key: a\r\nX-API-Key: text-of-alice\r\n").status, 400);
}

TEST_F(KeysTest, ScopesAndModelsAreKept) {
  tenant::ApiKey metrics = Key("metrics");
  metrics.inference = false;
  metrics.metrics = true;
  tenant::ApiKey other = Key("other");
  other.models = {"another"};
  tenant::ApiKey bound = Key("bound");
  bound.models = {TestModel()->name()};
  StartWithKeys({Key("alice"), metrics, other, bound});
  EXPECT_EQ(Send("GET", "/metrics", kAlice).status, 403);
  EXPECT_EQ(Send("GET", "/metrics", "api-key: text-of-metrics\r\n").status, 200);
  EXPECT_EQ(Chat("api-key: text-of-metrics\r\n").status, 403);
  const Reply refused = Chat("api-key: text-of-other\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "model");
  EXPECT_EQ(Chat("api-key: text-of-bound\r\n").status, 200);
  const std::string name = TestModel()->name();
  EXPECT_EQ(
      Chat("api-key: text-of-bound\r\n", R"("max_tokens":5,"model":")" + name + R"(@v7")").status,
      200);
  EXPECT_EQ(Chat(kAlice, R"("max_tokens":5,"model":")" + name + R"(@v8")").status, 404);
  EXPECT_EQ(
      Json::parse(Send("GET", "/v1/models", "api-key: text-of-other\r\n").body)["data"].size(), 0U);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models", kAlice).body)["data"].size(),
            TestModel()->names->All().size());
}

TEST_F(KeysTest, AUsedUpQuotaIsNamed) {
  tenant::ApiKey key = Key("alice");
  key.limits.requests_per_minute = 1;
  StartWithKeys({key});
  EXPECT_EQ(Chat(kAlice).Header("x-inferd-rejected-reason"), "");
  const Reply refused = Chat(kAlice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.Header("x-inferd-rejected-reason"), "quota");
  EXPECT_EQ(refused.Header("x-should-retry"), "true");
}

TEST_F(KeysTest, AGatewaysHeadersAreBelievedOfGatewaysOnly) {
  tenant::ApiKey gateway = Key("gateway");
  gateway.gateway = true;
  StartWithKeys({gateway, Key("alice")});
  const std::string as_gateway = "api-key: text-of-gateway\r\n";
  const std::string ours = "X-Inferd-Tenant: a\r\n";
  const std::string short_one = "X-Tenant: b\r\n";
  const std::string fairness = "X-Gateway-Inference-Fairness-Id: c\r\n";
  const auto tenant_of = [&](const std::string& headers) {
    EXPECT_EQ(Chat(headers).status, 200);
    return service_.last()->tenant;
  };
  EXPECT_EQ(tenant_of(as_gateway + ours), "gateway\na");
  EXPECT_EQ(tenant_of(as_gateway + short_one), "gateway\nb");
  EXPECT_EQ(tenant_of(as_gateway + fairness), "gateway\nc");
  EXPECT_EQ(tenant_of(as_gateway + ours + "X-Tenant: a\r\n"), "gateway\na");
  EXPECT_EQ(tenant_of(as_gateway + "X-Inferd-Tenant:\r\n"), "gateway") << "of nobody";
  EXPECT_EQ(tenant_of(kAlice + short_one), "alice");
  for (const std::string& unclear : {fairness + fairness,
                                     ours + short_one,
                                     fairness + ours,
                                     "X-Inferd-Tenant:\r\n" + short_one,
                                     short_one + "X-Gateway-Inference-Fairness-Id:\r\n"}) {
    EXPECT_EQ(Chat(as_gateway + unclear).status, 400) << "whose it is must be clear: " << unclear;
  }
  for (const std::string& unclear : {ours + short_one, "X-Inferd-Tenant:\r\n" + fairness}) {
    EXPECT_EQ(tenant_of(kAlice + unclear), "alice") << "to who is no gateway they mean nothing";
  }

  const std::string bulk = "X-Gateway-Inference-Objective: bulk\r\n";
  const auto priority_of = [&](const std::string& headers, const std::string& fields) {
    EXPECT_EQ(Chat(headers, fields).status, 200);
    return service_.last()->priority;
  };
  const std::string plain = R"("max_tokens":5)";
  const std::string ahead = plain + R"(,"priority":-50)";
  EXPECT_EQ(priority_of(as_gateway + bulk, plain), 10);
  EXPECT_EQ(priority_of(as_gateway + bulk, ahead), 10);
  EXPECT_EQ(priority_of(as_gateway + bulk, plain + R"(,"priority":5)"), 15);
  EXPECT_EQ(priority_of(as_gateway + "X-Gateway-Inference-Objective: other\r\n", plain), 0);
  EXPECT_EQ(priority_of(kAlice + bulk, plain), 0);
}

TEST_F(KeysTest, AnAdminChangesTheModelsNames) {
  tenant::ApiKey admin = Key("admin");
  admin.admin = true;
  tenant::ApiKey bound = Key("bound");
  bound.models = {"test-model"};
  StartWithKeys({admin, bound, Key("alice")});
  const std::string as_admin = "api-key: text-of-admin\r\n";
  const std::string as_bound = "api-key: text-of-bound\r\n";
  const auto rename = [&](const std::string& headers, const std::string& body) {
    return Send("POST", "/v1/served_model_name", headers, body);
  };
  const auto ask = [&](const std::string& name) {
    return Chat(kAlice, R"("max_tokens":5,"model":")" + name + '"');
  };
  const std::string both = R"({"served_model_name":["new","test-model"]})";
  EXPECT_EQ(rename(kAlice, both).status, 403);
  EXPECT_EQ(ask("new").status, 404);

  const Reply renamed = rename(as_admin, both);
  EXPECT_EQ(renamed.status, 200);
  EXPECT_EQ(renamed.body, both);
  for (const char* const name : {"new", "test-model", "new@v7"}) {
    const Reply reply = ask(name);
    EXPECT_EQ(reply.status, 200) << name;
    EXPECT_EQ(Json::parse(reply.body)["model"], "new");
  }
  EXPECT_EQ(ask("alias").status, 404);
  EXPECT_EQ(Json::parse(Send("GET", "/v1/models", kAlice).body)["data"][0]["id"], "new");
  EXPECT_NE(Send("GET", "/metrics", as_admin).body.find("model_name=\"test-model\""),
            std::string::npos);

  EXPECT_EQ(Chat(as_bound).status, 200) << "a name that is left out is one that the key may use";
  EXPECT_EQ(Chat(as_bound, R"("max_tokens":5,"model":"new")").status, 403);

  EXPECT_EQ(rename(as_admin, R"({"served_model_name":"new"})").status, 200);
  EXPECT_EQ(ask("test-model").status, 404);
  EXPECT_EQ(Chat(as_bound).status, 403);
  const std::string long_name(257, 'x');
  for (const std::string& bad : {std::string("{}"),
                                 std::string(R"({"served_model_name":[]})"),
                                 std::string(R"({"served_model_name":["a",""]})"),
                                 std::string(R"({"served_model_name":["a","a"]})"),
                                 std::string(R"({"served_model_name":["a",5]})"),
                                 std::string(R"({"served_model_name":7})"),
                                 std::string(R"({"served_model_name":"a\u0007"})"),
                                 R"({"served_model_name":")" + long_name + R"("})"}) {
    EXPECT_EQ(rename(as_admin, bad).status, 400) << bad;
  }
  EXPECT_EQ(ask("new").status, 200);
}

TEST_F(KeysTest, WithoutKeysTheNamesStay) {
  Start();
  EXPECT_EQ(Send("POST", "/v1/served_model_name", "", R"({"served_model_name":"new"})").status,
            403);
}

TEST_F(KeysTest, RequestLimitsAreShownAndTruthful) {
  tenant::ApiKey key = Key("alice");
  key.limits = {.requests_per_minute = 2};
  StartWithKeys({key});
  const Reply first = Chat(kAlice);
  EXPECT_EQ(first.status, 200);
  EXPECT_TRUE(first.Has("x-ratelimit-limit-requests: 2\r\n")) << first.head;
  EXPECT_TRUE(first.Has("x-ratelimit-remaining-requests: 1\r\n")) << first.head;
  EXPECT_TRUE(first.Has("x-ratelimit-reset-requests: 30s\r\n")) << first.head;
  EXPECT_FALSE(first.Has("x-ratelimit-limit-tokens")) << first.head;
  EXPECT_TRUE(first.Has("x-inferd-model-version: v7\r\n")) << first.head;
  const Reply streamed = Chat(kAlice, R"("max_tokens":5,"stream":true)");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_TRUE(streamed.Has("x-ratelimit-remaining-requests: 0\r\n")) << streamed.head;
  EXPECT_TRUE(streamed.Has("x-inferd-model-version: v7\r\n")) << streamed.head;
  const Reply refused = Chat(kAlice);
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.Has("retry-after: 30\r\n")) << refused.head;
  EXPECT_TRUE(refused.Has("retry-after-ms: 30000\r\n")) << refused.head;
  EXPECT_TRUE(refused.Has("x-ratelimit-remaining-requests: 0\r\n")) << refused.head;
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(Send("GET", "/v1/models", kAlice).status, 200) << "looking at models is not counted";
  clock_.AdvanceMs(30'000);
  EXPECT_EQ(Chat(kAlice).status, 200);
}

TEST_F(KeysTest, TokensAreReservedAtAdmissionAndSettledAtTheEnd) {
  tenant::ApiKey key = Key("alice");
  key.limits = {.tokens_per_minute = 600};
  StartWithKeys({key});
  const Reply first = Chat(kAlice, R"("max_tokens":400)");
  EXPECT_EQ(first.status, 200);
  const auto usage = Json::parse(first.body)["usage"];
  const int prompt = usage["prompt_tokens"];
  const int used = usage["total_tokens"];
  EXPECT_TRUE(first.Has("x-ratelimit-remaining-tokens: " + std::to_string(200 - prompt) + "\r\n"))
      << first.head;
  const Reply second = Chat(kAlice, R"("max_tokens":5)");
  EXPECT_TRUE(second.Has(
      "x-ratelimit-remaining-tokens: " + std::to_string(600 - used - prompt - 5) + "\r\n"))
      << second.head << " after " << used;
  const Reply refused = Chat(kAlice, R"("max_tokens":300,"n":2)");
  EXPECT_EQ(refused.status, 429);
  EXPECT_FALSE(refused.Has("retry-after: 0\r\n")) << refused.head;
  EXPECT_TRUE(refused.Has("retry-after: ")) << refused.head;
}

TEST_F(KeysTest, APlaceIsFreeWhenTheAnswerCanBeRead) {
  tenant::ApiKey key = Key("alice");
  key.limits = {.max_concurrency = 1};
  StartWithKeys({key});
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(Chat(kAlice).status, 200) << i;
    ASSERT_EQ(Chat(kAlice, R"("max_tokens":5,"stream":true)").status, 200) << i;
    ASSERT_EQ(Chat(kAlice, R"("max_tokens":0)").status, 400) << i;
    ASSERT_EQ(Send("POST", "/tokenize", kAlice, R"({"prompt":"x"})").status, 200) << i;
  }
  service_.Pause(true);
  HttpClient running(port_);
  running.Send(PostBytes("/v1/chat/completions", ChatWith(R"("max_tokens":5)"), kAlice));
  ASSERT_TRUE(service_.WaitRunning(1));
  EXPECT_EQ(Chat(kAlice).status, 429);
  running.Reset();  // the client leaves
  EXPECT_TRUE(service_.WaitRunning(0));
  service_.Pause(false);
  EXPECT_TRUE(Eventually([&] { return Chat(kAlice).status == 200; }));
}

TEST_F(KeysTest, TheEngineGetsPriorityAndASaltOfTheKey) {
  tenant::ApiKey key = Key("alice");
  key.priority = 7;
  StartWithKeys({key, Key("bob")});
  EXPECT_EQ(Chat(kAlice, R"("max_tokens":5,"priority":-50,"cache_salt":"s")").status, 200);
  const auto alice = service_.last();
  ASSERT_TRUE(alice);
  EXPECT_EQ(alice->priority, 7);
  EXPECT_EQ(Chat("api-key: text-of-bob\r\n", R"("max_tokens":5,"cache_salt":"s")").status, 200);
  EXPECT_NE(service_.last()->cache_salt, alice->cache_salt);
}

TEST_F(KeysTest, TheLedgerHasWhatReachedTheModel) {
  StartWithKeys({Key("alice")});
  const Reply done = Chat(kAlice + "X-Request-Id: r-1\r\n");
  EXPECT_EQ(Chat(kAlice, R"("max_tokens":"many")").status, 400);
  EXPECT_EQ(Chat("").status, 401);
  service_.FailNextSubmit(ResourceExhausted("full"));
  EXPECT_EQ(Chat(kAlice).status, 429);
  ASSERT_TRUE(Eventually([&] { return ledger_->records().size() == 2; }));
  const auto records = ledger_->records();
  EXPECT_EQ(records[0].key, "alice");
  EXPECT_EQ(records[0].operation, "/v1/chat/completions");
  EXPECT_EQ(records[0].request_id, "r-1");
  EXPECT_EQ(records[0].version, "v7");
  EXPECT_EQ(records[0].usage.outcome, tenant::UsageOutcome::kDone);
  EXPECT_EQ(records[0].usage.completion_tokens,
            Json::parse(done.body)["usage"]["completion_tokens"].get<std::int64_t>());
  EXPECT_EQ(records[0].usage.cached_tokens, 1);
  EXPECT_GE(records[0].usage.ttft_ms, 0);
  EXPECT_GE(records[0].usage.total_ms, records[0].usage.ttft_ms);
  EXPECT_EQ(records[1].usage.outcome, tenant::UsageOutcome::kFailed);
  EXPECT_EQ(records[1].usage.prompt_tokens, 0);
  EXPECT_EQ(records[1].usage.ttft_ms, -1);
}

// Case 55: a browser's preflight has no key.
TEST_F(KeysTest, PreflightsNeedNoKeyAndTheRequestStillDoes) {
  HttpOptions options;
  options.allowed_origins = {"https://app.example", "null"};
  StartWithKeys({Key("alice")}, options);
  const std::string ask =
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization, x-stainless-os\r\n";
  const std::string path = "/v1/chat/completions";
  const Reply allowed = Send("OPTIONS", path, "Origin: https://app.example\r\n" + ask);
  EXPECT_EQ(allowed.status, 204);
  EXPECT_TRUE(allowed.Has("access-control-allow-origin: https://app.example\r\n")) << allowed.head;
  EXPECT_TRUE(allowed.Has("access-control-allow-methods: post")) << allowed.head;
  EXPECT_TRUE(allowed.Has("access-control-allow-headers: authorization, x-stainless-os\r\n"))
      << allowed.head;
  EXPECT_TRUE(allowed.Has("vary: origin\r\n")) << allowed.head;
  for (const char* const foreign : {"https://app.example.evil.example",
                                    "http://app.example",
                                    "https://APP.example",
                                    "https://app.example:444",
                                    "https://evil.example"}) {
    const Reply reply = Send("OPTIONS", path, "Origin: " + std::string(foreign) + "\r\n" + ask);
    EXPECT_EQ(reply.status, 204) << foreign;
    EXPECT_FALSE(reply.Has("access-control-")) << foreign;
  }
  const Reply keyless = Chat("Origin: https://app.example\r\n");
  EXPECT_EQ(keyless.status, 401);
  EXPECT_TRUE(keyless.Has("access-control-allow-origin: https://app.example\r\n"));
  const Reply served = Chat("Origin: https://app.example\r\n" + kAlice);
  EXPECT_EQ(served.status, 200);
  EXPECT_TRUE(served.Has("access-control-expose-headers: ")) << served.head;
  EXPECT_FALSE(served.Has("access-control-allow-credentials")) << served.head;
  EXPECT_EQ(Send("OPTIONS", "*", "").status, 204);
  EXPECT_EQ(Send("OPTIONS", "/nowhere", "").status, 404);
}

TEST_F(KeysTest, WithoutAllowedOriginsNoPageMayRead) {
  Start();
  const Reply reply = Chat("Origin: https://app.example\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.Has("access-control-")) << reply.head;
}

TEST_F(KeysTest, IdsAndTracesComeBackWithEveryAnswer) {
  Start();
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const std::string headers = "X-Request-Id: mine-1\r\ntraceparent: " + trace + "\r\n";
  for (const Reply& reply : {Chat(headers),
                             Chat(headers, R"("max_tokens":5,"stream":true)"),
                             Chat(headers, R"("max_tokens":-1)"),
                             Send("GET", "/nowhere", headers),
                             Send("PUT", "/health", headers + "Content-Length: 0\r\n"),
                             Send("GET", "/health", headers),
                             Send("POST", "/tokenize", headers + "Content-Encoding: gzip\r\n")}) {
    EXPECT_TRUE(reply.Has("x-request-id: mine-1\r\n")) << reply.head;
    EXPECT_TRUE(reply.Has("traceparent: " + trace + "\r\n")) << reply.head;
  }
  EXPECT_FALSE(Chat("traceparent: 00-XYZ-1-01\r\n").Has("traceparent"));
}

TEST_F(KeysTest, LoadMetricsComeOnRequest) {
  Start();
  const Reply text = Chat("endpoint-load-metrics-format: TEXT\r\n");
  EXPECT_TRUE(text.Has("endpoint-load-metrics: text named_metrics.kv_cache_usage_perc=0.2500, "))
      << text.head;
  const Reply json =
      Chat("endpoint-load-metrics-format: JSON\r\n", R"("max_tokens":5,"stream":true)");
  const std::size_t at = json.head.find("endpoint-load-metrics: json ");
  ASSERT_NE(at, std::string::npos) << json.head;
  const std::string value = json.head.substr(at + 28, json.head.find("\r\n", at) - at - 28);
  EXPECT_EQ(Json::parse(value)["named_metrics"]["kv_cache_usage_perc"], 0.25);
  EXPECT_FALSE(Chat("").Has("endpoint-load-metrics"));
  EXPECT_FALSE(Chat("endpoint-load-metrics-format: BIN\r\n").Has("endpoint-load-metrics"));
}

TEST_F(KeysTest, LostRowsOfTheLedgerShowInTheMetrics) {
  tenant::ApiKey key = Key("alice");
  key.metrics = true;
  StartWithKeys({key});
  EXPECT_NE(Send("GET", "/metrics", kAlice).body.find("inferd_usage_records_dropped_total"),
            std::string::npos);
  ledger_->Drop(17);
  const std::string page = Send("GET", "/metrics", kAlice).body;
  const std::size_t line = page.find("\ninferd_usage_records_dropped_total{");
  ASSERT_NE(line, std::string::npos) << page;
  EXPECT_TRUE(page.substr(line + 1, page.find('\n', line + 1) - line - 1).ends_with(" 17"))
      << page.substr(line, 200);
}

TEST_F(KeysTest, TheEngineLearnsWhoseRequestItIs) {
  StartWithKeys({Key("alice")});
  ASSERT_EQ(Send("POST", "/v1/chat/completions", kAlice, ChatWith(R"("user":"u1")")).status, 200);
  EXPECT_EQ(service_.last()->tenant, "alice");
  EXPECT_EQ(service_.last()->user, "u1");
}

TEST_F(KeysTest, StoredResponsesBelongToTheirKey) {
  StartWithKeys({Key("alice"), Key("bob")});
  const std::string bob = "Authorization: Bearer text-of-bob\r\n";
  const std::string ask = R"({"input":"hi","max_output_tokens":5})";
  const Reply made = Send("POST", "/v1/responses", kAlice, ask);
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string id = Json::parse(made.body)["id"];
  const std::string path = "/v1/responses/" + id;
  for (const auto& [method, at] :
       std::vector<std::pair<std::string, std::string>>{{"GET", path},
                                                        {"GET", path + "/input_items"},
                                                        {"POST", path + "/cancel"},
                                                        {"DELETE", path}}) {
    const Reply reply = Send(method, at, bob);
    EXPECT_EQ(reply.status, 404) << method << at;
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "response_not_found");
  }
  const std::string more = R"({"input":"hi","max_output_tokens":5,"previous_response_id":")" + id;
  const Reply stranger = Send("POST", "/v1/responses", bob, more + "\"}");
  EXPECT_EQ(stranger.status, 404);
  EXPECT_EQ(Json::parse(stranger.body)["error"]["param"], "previous_response_id");
  EXPECT_EQ(Send("POST", "/v1/responses", kAlice, more + "\"}").status, 200);
  EXPECT_EQ(Send("GET", path, kAlice).status, 200);
  EXPECT_EQ(Send("DELETE", path, kAlice).status, 200);
  EXPECT_EQ(Send("GET", path, kAlice).status, 404);
}

TEST_F(KeysTest, AKeysModelsAreItsModelsInEveryProtocol) {
  tenant::ApiKey key = Key("alice");
  key.models = {"alias"};
  StartWithKeys({key});
  const Json messages = {{{"role", "user"}, {"content", "hi"}}};
  for (const std::string path :
       {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"}) {
    for (const std::string model : {"alias", "test-model"}) {
      Json body = {{"model", model}, {"max_tokens", 5}, {"stream", false}};
      body[path == "/v1/responses" ? "input" : "messages"] = messages;
      EXPECT_EQ(Send("POST", path, kAlice, body.dump()).status, model == "alias" ? 200 : 403)
          << path;
    }
  }
}

}  // namespace
}  // namespace inferd::api

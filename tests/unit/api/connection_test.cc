// SPDX-License-Identifier: Apache-2.0
// The whole front end over loopback: connections, framing, limits, slow and leaving clients,
// health, drain.
#include "api/core/event_ring.h"
#include "server_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace inferd::api {
namespace {

TEST_F(ServerTest, RequestsOfOneConnectionAnswerInOrder) {
  Start();
  HttpClient client(port_);
  client.Send(PostBytes("/tokenize", R"({"prompt":"a"})") +
              PostBytes("/v1/chat/completions", kChat) +
              "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" +
              PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)")) +
              "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_NE(client.Read().body.find("\"count\":2"), std::string::npos);
  EXPECT_NE(client.Read().body.find("chat.completion\""), std::string::npos);
  EXPECT_NE(client.Read().body.find("\"status\""), std::string::npos);
  EXPECT_NE(client.Read().body.find("[DONE]"), std::string::npos);
  const Reply last = client.Read();
  EXPECT_NE(last.body.find("\"version\""), std::string::npos);
  EXPECT_TRUE(last.Has("connection: close"));
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerTest, ChunkedBodiesAndContinue) {
  Start();
  HttpClient client(port_);
  client.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  for (const char c : kChat) {
    ASSERT_TRUE(client.Send("1\r\n" + std::string(1, c) + "\r\n"));
  }
  client.Send("0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  client.Send(
      PostBytes("/v1/chat/completions", kChat, "Expect: 100-continue\r\n"));  // does not wait
  const Reply reply = client.Read();
  EXPECT_TRUE(reply.status == 200 || (reply.status == 100 && client.Read().status == 200));
}

TEST_F(ServerTest, Http10GetsAPlainStream) {
  Start();
  HttpClient client(port_);
  const std::string body = ChatWith(R"("stream":true)");
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const Reply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.Has("transfer-encoding"));
  EXPECT_EQ(Join(Events(reply.body)).at(0).text, "Hello");
}

TEST_F(ServerTest, Routing) {
  Start();
  EXPECT_EQ(Get(port_, "/").status, 404);
  EXPECT_EQ(Get(port_, "//v1/models").status, 404);
  EXPECT_EQ(Get(port_, "/v1/models/").status, 404);
  EXPECT_EQ(Get(port_, "/v1%2Fmodels").status, 404);
  const Reply wrong = Get(port_, "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.Has("allow: post, options"));
  EXPECT_EQ(Json::parse(wrong.body)["error"]["type"], "invalid_request_error");
  HttpClient client(port_);
  client.Send("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n");
  const Reply options = client.Read();
  EXPECT_EQ(options.status, 204);
  EXPECT_FALSE(options.Has("access-control")) << "no other origin is let in";
  client.Send("HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Reply head = client.Read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_FALSE(head.Has("content-length: 0"));
  client.Send("GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n\r\n");
  EXPECT_TRUE(client.Read().Has("x-request-id: mine\r\n"));
}

TEST_F(ServerTest, Models) {
  Start();
  const Json list = Json::parse(Get(port_, "/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][0]["id"], "test-model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 1000);
  EXPECT_EQ(Json::parse(Get(port_, "/v1/models/alias").body)["id"], "alias");
  const Reply none = Get(port_, "/v1/models/none");
  EXPECT_EQ(none.status, 404);
  EXPECT_EQ(Json::parse(none.body)["error"]["param"], "model");
}

TEST_F(ServerTest, ForeignHostNamesAreRefusedWhenBoundLocally) {
  HttpOptions options;
  options.allowed_hosts = {"localhost", "127.0.0.1"};
  Start(options);
  for (const auto& [host, status] :
       std::vector<std::pair<std::string, int>>{{"localhost", 200},
                                                {"LocalHost:8000", 200},
                                                {"127.0.0.1:1", 200},
                                                {"evil.example", 403},
                                                {"localhost.evil", 403}}) {
    HttpClient client(port_);
    client.Send("GET /livez HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    EXPECT_EQ(client.Read().status, status) << host;
  }
}

TEST_F(ServerTest, HealthFollowsThePhase) {
  Start();
  const std::vector<std::pair<leader::Phase, int>> table{{leader::Phase::kStarting, 503},
                                                         {leader::Phase::kLoading, 503},
                                                         {leader::Phase::kReady, 200},
                                                         {leader::Phase::kRecovering, 503},
                                                         {leader::Phase::kFailed, 503},
                                                         {leader::Phase::kDraining, 503}};
  for (const auto& [phase, ready] : table) {
    service_.SetPhase(phase);
    EXPECT_EQ(Get(port_, "/livez").status, 200);
    for (const char* path : {"/readyz", "/health", "/ping"}) {
      EXPECT_EQ(Get(port_, path).status, ready) << path << static_cast<int>(phase);
    }
  }
  service_.SetPhase(leader::Phase::kLoading);
  EXPECT_EQ(Json::parse(Get(port_, "/readyz").body)["bytes_total"], 2);
  const Reply early = Post(port_, "/v1/chat/completions", kChat);
  EXPECT_EQ(early.status, 503);
  EXPECT_TRUE(early.Has("retry-after: "));
}

TEST_F(ServerTest, HealthAnswersWhileAllElseIsBusy) {
  HttpOptions options;
  options.request_threads = 1;
  Start(options);
  service_.Pause(true);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port_));
    clients.back()->Send(PostBytes("/v1/chat/completions", kChat));
  }
  const auto big = std::make_unique<HttpClient>(port_);
  std::thread sender([&] {
    big->Send(PostBytes("/tokenize", R"({"prompt":")" + std::string(1 << 20, 'a') + "\"}"));
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Get(port_, "/health").status, 200);
    EXPECT_EQ(Get(port_, "/metrics").status, 200);
  }
  sender.join();
  ASSERT_TRUE(service_.WaitRunning(50));
  service_.Pause(false);
  for (const auto& client : clients) {
    EXPECT_EQ(client->Read().status, 200);
  }
}

TEST_F(ServerTest, AClientThatLeavesCancelsItsRequest) {
  Start();
  service_.SetScripts({Bytes("abc")});
  service_.HoldAt(5);
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      HttpClient client(port_);
      client.Send(
          PostBytes("/v1/chat/completions",
                    ChatWith(std::string(R"("n":2,"stream":)") + (stream ? "true" : "false"))));
      ASSERT_TRUE(service_.WaitRunning(2));
      if (stream) {
        ASSERT_TRUE(client.ReadUntil("content\":\"a"));
      }
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(service_.WaitRunning(0)) << stream << reset;
    }
  }
  EXPECT_TRUE(Eventually([&] { return server_->open_requests() == 0; }));
  EXPECT_EQ(server_->metrics().clients_left.load(), 4U);
  EXPECT_NE(Get(port_, "/metrics").body.find(R"(finished_reason="abort"} 8)"), std::string::npos);
}

TEST_F(ServerTest, ASlowReaderGetsEverythingInFewerEvents) {
  // All events fit into the inbox, so that an engine without a step time cannot overrun it.
  constexpr std::size_t kEvents = 64 * 120;
  static_assert(kEvents <= EventInbox::kRingCapacity);
  Start();
  service_.SetScripts({Bytes("0123456789abcdefghijklmnopqrstuvwxyz")});
  HttpClient client(port_, 4096);
  client.Send(
      PostBytes("/v1/completions",
                R"({"prompt":"a","ignore_eos":true,"stream":true,"max_tokens":120,"n":64})"));
  ASSERT_TRUE(Eventually([&] { return service_.tokens() == kEvents; }))
      << "the engine does not wait for the reader";
  const auto events = Events(client.Read().body);
  EXPECT_LT(events.size(), kEvents / 2) << "what waits is merged";
  const auto joined = Join(events);
  ASSERT_EQ(joined.size(), 64U);
  for (const auto& [index, choice] : joined) {
    ASSERT_EQ(choice.text.size(), 120U) << index;
    EXPECT_EQ(choice.text.substr(36 * 3), "0123456789ab");
    EXPECT_EQ(choice.finish, "length");
  }
}

TEST_F(ServerTest, AReaderThatStopsIsCut) {
  HttpOptions options;
  options.stall_timeout_ms = 300;
  Start(options);
  service_.SetScripts({Bytes("0123456789abcdefghijklmnopqrstuvwxyz")});
  HttpClient client(port_, 4096);
  const std::string body = R"({"prompt":"a","stream":true,"max_tokens":63,"n":128,"logprobs":20})";
  client.Send(PostBytes("/v1/completions", body) + PostBytes("/v1/completions", body) +
              PostBytes("/v1/completions", body));
  EXPECT_TRUE(Eventually([&] { return server_->metrics().slow_clients_cut.load() == 1; }));
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_TRUE(Eventually([&] { return server_->metrics().connections_open.load() == 0; }));
}

TEST_F(ServerTest, SlowSendersAreTimedOut) {
  HttpOptions options;
  options.head_timeout_ms = 400;
  options.body_grace_ms = 100;
  options.idle_timeout_ms = 1000;
  Start(options);
  HttpClient head(port_);
  head.Send("POST / HTTP/1.1\r\nHo");
  EXPECT_EQ(head.Read().status, 408);
  HttpClient body(port_);
  body.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  HttpClient nothing(port_);
  EXPECT_TRUE(nothing.AtEnd());
  HttpClient idle(port_);
  idle.Send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(ServerTest, MalformedRequestsAreAnsweredAndTheConnectionEnds) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  Start(options);
  const std::string post = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n";
  const std::vector<std::pair<std::string, int>> corpus{
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nfff\r\n", 413},
      {post + "Content-Length: 100000000\r\n\r\n" + std::string(500'000, 'x'), 413},
      {post + "\r\n", 411},
      {post + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
      {post + "Expect: tea\r\nContent-Length: 1\r\n\r\nx", 417},
      {"GET / HTTP/1.1\nHost: h\n\n", 400},
      {"GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(20'000, 'x') + "\r\n\r\n", 431},
      {"\x16\x03\x01", 400},
  };
  for (const auto& [bytes, status] : corpus) {
    HttpClient client(port_);
    client.Send(bytes);
    const Reply reply = client.Read();
    EXPECT_EQ(reply.status, status) << bytes.substr(0, 100);
    EXPECT_TRUE(reply.Has("connection: close"));
    EXPECT_FALSE(Json::parse(reply.body)["error"]["message"].get<std::string>().empty());
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_EQ(Get(port_, "/livez").status, 200);
}

TEST_F(ServerTest, TooManyConnectionsAreRefused) {
  HttpOptions options;
  options.max_connections = 2;
  Start(options);
  HttpClient a(port_), b(port_);
  a.Send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  b.Send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(a.Read().status, 200);
  EXPECT_EQ(b.Read().status, 200);
  HttpClient c(port_);
  EXPECT_TRUE(c.AtEnd());
  EXPECT_EQ(server_->metrics().connections_refused.load(), 1U);
  a.Close();
  EXPECT_TRUE(Eventually([&] { return server_->metrics().connections_open.load() == 1; }));
  EXPECT_EQ(Get(port_, "/livez").status, 200);
}

TEST_F(ServerTest, AFullRequestQueueAnswers429) {
  HttpOptions options;
  options.request_threads = 1;
  options.request_queue = 1;
  Start(options);
  const std::string slow = R"({"prompt":")" + std::string(300'000, 'a') + "\"}";
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port_));
    clients.back()->Send(PostBytes("/tokenize", slow));
  }
  std::map<int, int> statuses;
  for (const auto& client : clients) {
    ++statuses[client->Read().status];
  }
  EXPECT_GE(statuses[429], 1);
  EXPECT_GE(statuses[200], 1);
  EXPECT_EQ(statuses[429] + statuses[200], 4);
}

TEST_F(ServerTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  Start();
  service_.Pause(true);
  HttpClient running(port_);
  running.Send(PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)")));
  ASSERT_TRUE(service_.WaitRunning(1));
  EXPECT_EQ(server_->open_requests(), 1);
  server_->BeginDrain();
  EXPECT_EQ(Get(port_, "/readyz").status, 503);
  EXPECT_EQ(Get(port_, "/livez").status, 200);
  const Reply refused = Post(port_, "/v1/chat/completions", kChat);
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.Has("retry-after: "));
  EXPECT_TRUE(refused.Has("connection: close"));
  service_.Pause(false);
  EXPECT_EQ(Join(Events(running.Read().body)).at(0).text, "Hello");
  EXPECT_TRUE(Eventually([&] { return server_->open_requests() == 0; }));
}

TEST_F(ServerTest, WhatLeavesIsUnreadyButStillServes) {
  Start();
  server_->BeginLeaving();
  EXPECT_EQ(Get(port_, "/readyz").status, 503);
  EXPECT_EQ(Get(port_, "/v2/health/ready").status, 503);
  EXPECT_EQ(Get(port_, "/livez").status, 200);
  const Reply served = Post(port_, "/v1/chat/completions", kChat);
  EXPECT_EQ(served.status, 200);
  EXPECT_TRUE(served.Has("connection: close"));
}

TEST_F(ServerTest, StopEndsWhatRuns) {
  Start();
  service_.Pause(true);
  HttpClient running(port_);
  running.Send(PostBytes("/v1/chat/completions", kChat));
  ASSERT_TRUE(service_.WaitRunning(1));
  server_->Stop();
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_TRUE(running.AtEnd());
}

TEST_F(ServerTest, SeveralIoThreadsShareThePort) {
  HttpOptions options;
  options.io_threads = 3;
  Start(options);
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 5; ++k) {
        good += Join(Events(Post(port_, "/v1/chat/completions", ChatWith(R"("stream":true)")).body))
                    .at(0)
                    .text == "Hello";
      }
    });
  }
  for (auto& client : clients) {
    client.join();
  }
  EXPECT_EQ(good.load(), 80);
}

TEST_F(ServerTest, MetricsHaveBothNames) {
  Start();
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 200);
  const Reply reply = Get(port_, "/metrics");
  EXPECT_TRUE(reply.Has("content-type: text/plain; version=0.0.4"));
  for (const char* line :
       {"inferd_num_requests_running{model_name=\"test-model\"} 0",
        "vllm:num_requests_running{model_name=\"test-model\"} 0",
        "vllm:num_requests_waiting{model_name=\"test-model\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"test-model\"} 0.25",
        "vllm:generation_tokens_total{model_name=\"test-model\"} 12",
        "vllm:prompt_tokens_total{",
        "vllm:prefix_cache_queries_total{",
        "vllm:prefix_cache_hits_total{",
        "vllm:num_preemptions_total{",
        "vllm:time_to_first_token_seconds_count{model_name=\"test-model\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"test-model\"} 5",
        "vllm:time_per_output_token_seconds_bucket{",
        "vllm:e2e_request_latency_seconds_count{model_name=\"test-model\"} 1",
        "vllm:request_success_total{model_name=\"test-model\",finished_reason=\"stop\"} 1",
        "vllm:cache_config_info{model_name=\"test-model\",block_size=",
        "num_gpu_blocks=\"16\",cache_dtype=\"float16\"} 1",
        "vllm:engine_sleep_state{model_name=\"test-model\",sleep_state=\"awake\"} 1",
        "inferd_http_responses_total{model_name=\"test-model\",status=\"200\"} 1"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
}

TEST_F(ServerTest, MetricsHaveTheNamesThatAreAskedFor) {
  HttpOptions options;
  options.metrics_compat = *ParseMetricsCompat({"vllm-old", "sglang", "trtllm"});
  Start(options);
  const Reply reply = Get(port_, "/metrics");
  for (const char* line : {"inferd_num_requests_running{model_name=\"test-model\"} 0",
                           "vllm:gpu_cache_usage_perc{model_name=\"test-model\"} 0.25",
                           "vllm:num_requests_swapped{",
                           "vllm:gpu_prefix_cache_queries_total{",
                           "vllm:gpu_prefix_cache_hits_total{",
                           "vllm:gpu_prefix_cache_hit_rate{",
                           "sglang:num_running_reqs{",
                           "sglang:num_queue_reqs{",
                           "sglang:token_usage{model_name=\"test-model\"} 0.25",
                           "sglang:cache_config_info{model_name=\"test-model\",page_size=",
                           "trtllm_num_requests_waiting{",
                           "trtllm_kv_cache_utilization{model_name=\"test-model\"} 0.25",
                           "trtllm_kv_cache_max_blocks{"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
  EXPECT_EQ(reply.body.find("vllm:num_requests_running"), std::string::npos) << "not asked for";
  EXPECT_TRUE(ParseMetricsCompat({"vllm"})->vllm);
  EXPECT_FALSE(ParseMetricsCompat({"none"})->vllm);
  EXPECT_FALSE(ParseMetricsCompat({"none", "vllm"}).ok());
  EXPECT_NE(ParseMetricsCompat({"tgi"}).error().message().find("'tgi'"), std::string::npos);
}

TEST_F(ServerTest, TheAddressInUseIsAnError) {
  Start();
  HttpOptions options;
  options.port = port_;
  const auto second = Server::Start(options, TestModel(), &service_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message().find("--port"), std::string::npos);
}

}  // namespace
}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
// What a refused client is told beside the error: why, and whether to come back. And what is taken
// from headers and given back in them.
#include "base/error.h"
#include "server_fixture.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::api {
namespace {

class RefusalTest : public ServerTest {
 protected:
  Reply Chat(const std::string& headers = "", const std::string& body = kChat) {
    HttpClient client(port_);
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  }
};

TEST_F(RefusalTest, TheLoadsReasonIsNamedAndARetryIsAskedFor) {
  Start();
  for (const char* const reason : {"queue_full", "tokens", "predicted_wait"}) {
    service_.FailNextSubmit(ResourceExhausted("full"), 700, reason);
    const Reply reply = Chat();
    EXPECT_EQ(reply.status, 429);
    EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), reason);
    EXPECT_EQ(reply.Header("x-should-retry"), "true");
    EXPECT_GE(std::stol(reply.Header("retry-after-ms")), 700);
  }
}

TEST_F(RefusalTest, TheServersStateIsNamedAndSleepIsNotWorthARetry) {
  Start();
  const struct {
    leader::Phase phase;
    const char* reason;
    const char* retry;
  } cases[] = {{leader::Phase::kStarting, "loading", "true"},
               {leader::Phase::kLoading, "loading", "true"},
               {leader::Phase::kAsleep, "asleep", "false"},
               {leader::Phase::kFailed, "failed", ""},
               {leader::Phase::kDraining, "draining", "true"}};
  for (const auto& one : cases) {
    service_.SetPhase(one.phase);
    const Reply reply = Chat();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), one.reason);
    EXPECT_EQ(reply.Header("x-should-retry"), one.retry) << one.reason;
  }
  service_.SetPhase(leader::Phase::kReady);
  server_->BeginDrain();
  EXPECT_EQ(Chat().Header("x-inferd-rejected-reason"), "draining");
}

TEST_F(RefusalTest, AQueueDeadlineIsARefusalAndALaterOneIsNot) {
  Start();
  service_.FailAfter(0, DeadlineExceeded("still queued"));
  Reply reply = Chat();
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), "queue_deadline");
  service_.FailAfter(2, DeadlineExceeded("the deadline passed"));
  reply = Chat();
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), "");
}

TEST_F(RefusalTest, WhatFailedWhileItRanIsNotAskedForAgain) {
  Start();
  service_.FailAfter(2, Unavailable("worker lost 4 times in a row while this request ran"));
  const Reply reply = Chat();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), "");
  EXPECT_EQ(reply.Header("x-should-retry"), "");
}

TEST_F(RefusalTest, WhatTheClientGotWrongCarriesNeither) {
  Start();
  const Reply reply = Chat("", "{}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.Header("x-should-retry"), "");
  EXPECT_EQ(reply.Header("x-inferd-rejected-reason"), "");
}

TEST_F(RefusalTest, ASessionReachesTheEngineAndComesBack) {
  Start();
  EXPECT_EQ(Chat("X-Session-Id: ab:12/c=\r\n").Header("x-session-id"), "ab:12/c=");
  EXPECT_EQ(service_.last()->session, "ab:12/c=");
  service_.FailNextSubmit(ResourceExhausted("full"));
  EXPECT_EQ(Chat("X-Session-Id: s1\r\n").Header("x-session-id"), "s1");
  for (const std::string& bad : {std::string("a b"), std::string(257, 'x')}) {
    EXPECT_EQ(Chat("X-Session-Id: " + bad + "\r\n").Header("x-session-id"), "");
    EXPECT_EQ(service_.last()->session, "");
  }
}

TEST_F(RefusalTest, AStuckEngineIsNotAlive) {
  Start();
  EXPECT_EQ(Get(port_, "/livez").status, 200);
  service_.SetStallMs(301'500);
  const Reply stuck = Get(port_, "/livez");
  EXPECT_EQ(stuck.status, 503);
  EXPECT_EQ(stuck.body, R"({"status":"stuck","replica":1,"seconds":301})");
  EXPECT_EQ(Get(port_, "/readyz").status, 200);
  service_.SetStallMs(0);
  EXPECT_EQ(Get(port_, "/livez").status, 200);
}

}  // namespace
}  // namespace inferd::api

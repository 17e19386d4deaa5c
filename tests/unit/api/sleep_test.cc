// SPDX-License-Identifier: Apache-2.0
// /sleep, /wake_up and /is_sleeping before an engine that only notes what it is told.
#include "server_fixture.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::api {
namespace {

class SleepEndpointTest : public ServerTest {};

TEST_F(SleepEndpointTest, LevelAndModeReachTheEngine) {
  Start();
  EXPECT_EQ(Get(port_, "/is_sleeping").body, R"({"is_sleeping":false,"level":0})");
  EXPECT_EQ(Post(port_, "/sleep?level=2&mode=wait", "").body, R"({"is_sleeping":true,"level":2})");
  EXPECT_EQ(service_.sleep_mode(), leader::SleepMode::kWait);
  EXPECT_EQ(Get(port_, "/is_sleeping").body, R"({"is_sleeping":true,"level":2})");
  EXPECT_EQ(Post(port_, "/wake_up", "").body, R"({"is_sleeping":false,"level":0})");
  EXPECT_EQ(Post(port_, "/sleep", "").body, R"({"is_sleeping":true,"level":1})");
  EXPECT_EQ(service_.sleep_mode(), leader::SleepMode::kAbort);
}

TEST_F(SleepEndpointTest, WakingDoesNotQueueBehindASleepThatWaits) {
  Start();
  service_.WaitForWaking();
  HttpClient sleeper(port_);
  sleeper.Send(PostBytes("/sleep?mode=wait", ""));
  EXPECT_TRUE(Eventually([this] { return service_.sleep_level() == 1; }));
  EXPECT_EQ(Post(port_, "/wake_up", "").status, 200);
  EXPECT_EQ(sleeper.Read().status, 200);
}

TEST_F(SleepEndpointTest, OtherValuesAreRefusedByName) {
  Start();
  for (const char* query : {"level=0", "level=3", "level=", "mode=nap"}) {
    const Reply reply = Post(port_, std::string("/sleep?") + query, "");
    EXPECT_EQ(reply.status, 400) << query;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"],
              std::string(query).substr(0, std::string(query).find('=')));
  }
  EXPECT_EQ(service_.sleep_level(), 0);
}

TEST_F(SleepEndpointTest, AsleepItIsNotReadyAndRefusesWork) {
  Start();
  service_.SetPhase(leader::Phase::kAsleep);
  const Reply ready = Get(port_, "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(Json::parse(ready.body)["status"], "asleep");
  EXPECT_EQ(Get(port_, "/livez").status, 200);
  EXPECT_EQ(Get(port_, "/startupz").status, 200);
  const Reply refused = Post(port_, "/v1/chat/completions", kChat);
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.Has("retry-after: 5"));
}

}  // namespace
}  // namespace inferd::api

// SPDX-License-Identifier: Apache-2.0
#include "app/kv_events_config.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::app {
namespace {

std::string ErrorOf(const std::string& text, std::int32_t replicas = 1) {
  const auto parsed = ParseKvEventsConfig(text, replicas);
  return parsed.ok() ? "" : parsed.error().message();
}

TEST(KvEventsConfig, ReadsTheNamesOfVllm) {
  EXPECT_FALSE(ParseKvEventsConfig("", 1)->enabled);
  EXPECT_FALSE(ParseKvEventsConfig(R"({"endpoint": "tcp://*:9"})", 1)->enabled);
  const auto plain = ParseKvEventsConfig(R"({"enable_kv_cache_events": true})", 1);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->enabled);
  EXPECT_EQ(plain->endpoint, "tcp://*:5557");
  EXPECT_EQ(plain->replay_endpoint, "");
  EXPECT_FALSE(plain->array_events);
  const auto parsed = ParseKvEventsConfig(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000",
          "replay_endpoint": "tcp://*:6100", "buffer_steps": 5, "hwm": 6, "max_queue_size": 7,
          "topic": "kv@pod@model", "encoding": "array"})",
      4);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->endpoint, "tcp://*:6000");
  EXPECT_EQ(parsed->replay_endpoint, "tcp://*:6100");
  EXPECT_EQ(parsed->buffer_steps, 5);
  EXPECT_EQ(parsed->hwm, 6);
  EXPECT_EQ(parsed->max_queue_size, 7);
  EXPECT_EQ(parsed->topic, "kv@pod@model");
  EXPECT_TRUE(parsed->array_events);
  EXPECT_FALSE(
      ParseKvEventsConfig(R"({"enable_kv_cache_events": true, "publisher": "null"})", 1)->enabled);
  EXPECT_TRUE(
      ParseKvEventsConfig(R"({"enable_kv_cache_events": true, "publisher": null})", 1)->enabled);
}

TEST(KvEventsConfig, RefusesByName) {
  EXPECT_NE(ErrorOf("zmq").find("give a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"enable_kv_cache_events": 1})").find("true or false"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"publisher": "nats"})").find("nats"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"hwm": 0})").find("hwm is 0"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"max_queue_size": 0})").find("from 1"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"buffer_steps": 1.5})").find("1.5"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"topic": 3})").find("topic is 3"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"encoding": "json"})").find("array"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"port": 5557})").find("the keys are"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"endpoint": "inproc://kv"})").find("inproc://kv"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"replay_endpoint": "tcp://*:65530"})", 8).find("1 to 65528"),
            std::string::npos);
}

}  // namespace
}  // namespace inferd::app

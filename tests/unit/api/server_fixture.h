// SPDX-License-Identifier: Apache-2.0
// A server over loopback with an engine that recites, and what a client makes of a stream.
#pragma once

#include "api/server/server.h"
#include "fake_service.h"
#include "http_client.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {

using Json = nlohmann::json;

inline const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

inline std::string ChatWith(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}";
}

/// The JSON objects of an event stream; the last event must be [DONE].
inline std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  std::size_t at = 0;
  bool done = false;
  while (at < stream.size()) {
    const std::size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string event = stream.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_FALSE(done) << "something follows [DONE]: " << event;
    if (event == "data: [DONE]") {
      done = true;
    } else {
      events.push_back(Json::parse(event.substr(6)));
    }
    at = end == std::string::npos ? stream.size() : end + 2;
  }
  EXPECT_TRUE(done);
  return events;
}

struct Joined {
  std::string text;
  std::string finish;
  int finishes = 0;
  std::vector<Json> logprobs;
};

/// What a client makes of a stream, per index.
inline std::map<int, Joined> Join(const std::vector<Json>& events) {
  std::map<int, Joined> joined;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      Joined& j = joined[choice["index"]];
      j.text += choice.contains("delta") ? choice["delta"].value("content", "")
                                         : choice.value("text", "");
      if (!choice["finish_reason"].is_null()) {
        j.finish = choice["finish_reason"];
        ++j.finishes;
      }
      if (choice.contains("logprobs") && choice["logprobs"].is_object() &&
          choice["logprobs"].contains("content")) {
        for (const Json& item : choice["logprobs"]["content"]) {
          j.logprobs.push_back(item);
        }
      }
    }
  }
  return joined;
}

class ServerTest : public testing::Test {
 protected:
  void Start(HttpOptions options = {}) {
    options.port = 0;
    options.access_log = false;
    auto started = Server::Start(options, TestModel(), &service_);
    ASSERT_TRUE(started.ok()) << started.error().message();
    server_ = *std::move(started);
    port_ = server_->port();
  }
  void TearDown() override {
    if (server_ != nullptr) {
      server_->Stop();
    }
    service_.Stop();
  }

  FakeInferenceService service_;  // outlives the server's use of it
  std::unique_ptr<Server> server_;
  std::uint16_t port_ = 0;
};

}  // namespace inferd::api
